// Parameter servers: the nodes behind the ranks have a share of each part of the buffer each. A server answers a part when
// it has every rank's, while those of the next one arrive. It adds them once, in the order of the ranks: 16-bit floats
// round once, and the bits do not depend on where shares begin.
//
// A rank sends a few parts ahead of the answers that it has. Connections get uneven shares of a cable: with all parts sent
// at once a server has all of one rank long before the last part of another, and answers late.
#include <algorithm>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

// So many shares are on their way from one rank, or to one server, if two parts are no more than that: three quarters of a
// megabyte of the smallest ones. While a part is answered the next one comes.
constexpr int kShares = 24;
constexpr int kLeastAhead = 2;

class Servers final : public Generator {
 public:
  std::string_view name() const override { return "servers"; }

  std::optional<Plan> generate(const PlanRequest& request, Rank self) const override {
    const int servers = request.topology->serving;
    if (request.collective != Collective::kAllreduce || servers == 0) return std::nullopt;
    const auto chunks = static_cast<std::uint32_t>(servers * request.parts);
    Builder builder(name(), request, self, chunks, static_cast<std::uint32_t>(request.ranks()));
    builder.plan().accumulates_once = true;
    const auto chunk = [&](int server, int part) { return static_cast<std::uint32_t>(server * request.parts + part); };
    const int ranks = request.ranks();
    if (self < ranks) {
      // Everybody begins with another server, so that not all send to the same one: TCP would share its cable among them.
      const int ahead = std::max(kLeastAhead, kShares / std::max(ranks, servers));
      for (int part = 0; part < request.parts + ahead; ++part) {
        for (int i = 0; i < servers; ++i) {
          const int server = (self * servers / ranks + i) % servers;
          const int answered = part - ahead;
          if (answered >= 0 && answered < request.parts) builder.recv(ranks + server, chunk(server, answered));
          if (part < request.parts) builder.send(ranks + server, chunk(server, part));
        }
      }
      return std::move(builder.plan());
    }
    const int server = self - ranks;
    const auto rank_at = [&](int i) { return (server * ranks / servers + i) % ranks; };
    std::vector<ChunkRef> pieces;
    pieces.reserve(static_cast<std::size_t>(ranks));
    for (Rank from = 0; from < ranks; ++from) {
      pieces.push_back(builder.own(static_cast<std::uint32_t>(from), Buffer::kScratch));
    }
    for (int part = 0; part < request.parts; ++part) {
      const std::uint32_t share = chunk(server, part);
      for (int i = 0; i < ranks; ++i) builder.recv_scratch(rank_at(i), static_cast<std::uint32_t>(rank_at(i)), share);
      builder.reduce(pieces, {builder.own(share)}, true);
      for (int i = 0; i < ranks; ++i) builder.send(rank_at(i), share);
    }
    return std::move(builder.plan());
  }
  bool serves() const override { return true; }
  // Nothing is answered before the first parts are there, and nothing sent beside the last answers.
  int most_parts() const override { return 64; }
};

}  // namespace

const Generator& servers() {
  static const Servers generator;
  return generator;
}

}  // namespace ringcore::plan
