// Halving reduce-scatter, then doubling all-gather (Thakur, Rabenseifner & Gropp 2005, section 4.5).
#include "plan/builder.hpp"
#include "plan/generators/fold.hpp"

namespace ringcore::plan {
namespace {

class HalvingDoubling final : public Generator {
 public:
  std::string_view name() const override { return "halving_doubling"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    // Of fewer than four ranks a ring is the same.
    if (request.collective != Collective::kAllreduce || request.ranks() < 4) return std::nullopt;
    const Fold fold(request.ranks());
    const auto core = static_cast<std::uint32_t>(fold.core());
    Builder builder(name(), request, self, core);
    if (fold.hands_over(self)) {
      for (std::uint32_t chunk = 0; chunk < core; ++chunk) builder.send(self - 1, chunk);
      for (std::uint32_t chunk = 0; chunk < core; ++chunk) builder.recv(self - 1, chunk);
      return std::move(builder.plan());
    }
    for (std::uint32_t chunk = 0; fold.takes_over(self) && chunk < core; ++chunk) {
      builder.recv_reduce(self + 1, chunk, false);
    }
    halve_and_double(builder, fold);
    for (std::uint32_t chunk = 0; fold.takes_over(self) && chunk < core; ++chunk) builder.send(self + 1, chunk);
    return std::move(builder.plan());
  }

  Symmetry symmetry(const PlanRequest& request) const override {
    if (!Fold(request.ranks()).even()) return Symmetry::none(request.ranks());
    return Symmetry::exclusive_or(request.ranks()).blocks_move();
  }

 private:
  // A position collects the sums of the chunks that differ from it in fewer and fewer bits, in the end of its own.
  static void halve_and_double(Builder& builder, const Fold& fold) {
    const auto position = static_cast<std::uint32_t>(fold.position(builder.self()));
    const auto core = static_cast<std::uint32_t>(fold.core());
    const auto across = [&](std::uint32_t length) { return fold.rank_at(static_cast<int>(position ^ length)); };
    for (std::uint32_t length = core / 2; length >= 1; length /= 2) {
      for (std::uint32_t c = 0; c < length; ++c) builder.send(across(length), position ^ (length + c));
      for (std::uint32_t c = 0; c < length; ++c) builder.recv_reduce(across(length), position ^ c, length == 1);
    }
    for (std::uint32_t length = 1; length < core; length *= 2) {
      for (std::uint32_t c = 0; c < length; ++c) builder.send(across(length), position ^ c);
      for (std::uint32_t c = 0; c < length; ++c) builder.recv(across(length), position ^ (length + c));
    }
  }
};

}  // namespace

const Generator& halving_doubling() {
  static const HalvingDoubling generator;
  return generator;
}

}  // namespace ringcore::plan
