// Whether a rank's own program is what the proven plan says of it.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/verifier.hpp"

namespace ringcore::plan {
namespace {

// The program of `parts` parts that the segments of one part claim.
Program repeated(const Program& program, std::uint32_t parts) {
  if (program.segment_ends.empty()) return program;
  Program result{.channels = std::vector<Channel>(1)};
  Channel& steps = result.channels[0];
  std::size_t begin = 0;
  for (const std::size_t end : program.segment_ends) {
    for (std::uint32_t part = 0; part < parts; ++part) {
      for (std::size_t i = begin; i < end; ++i) {
        Step step = program.channels[0][i];
        for (auto* refs : {&step.sources, &step.targets}) {
          for (ChunkRef& ref : *refs) ref.chunk = ref.chunk * parts + part;
        }
        steps.push_back(std::move(step));
      }
    }
    result.segment_ends.push_back(steps.size());
    begin = end;
  }
  return result;
}

bool same(const Step& a, const Step& b, bool in_order) {
  if (in_order || a.kind != StepKind::kReduce || a.sources.size() == 1) return a == b;
  Step sorted[2] = {a, b};
  for (Step& step : sorted) {
    std::sort(step.sources.begin(), step.sources.end(), [](const ChunkRef& x, const ChunkRef& y) {
      return std::tie(x.rank, x.buffer, x.chunk) < std::tie(y.rank, y.buffer, y.chunk);
    });
  }
  return sorted[0] == sorted[1];
}

}  // namespace

std::optional<std::string> verify_part(const Plan& plan, const Excerpt& excerpt) {
  const auto wrong = [&](const std::string& what) {
    return plan.generator + ": rank " + std::to_string(plan.self) + ": " + what;
  };
  Header header = excerpt;
  const std::uint32_t parts = excerpt.chunks == 0 ? 0 : plan.chunks / excerpt.chunks;
  if (!excerpt.programs.empty() && !excerpt.programs[0].segment_ends.empty()) {
    header.chunks *= parts;
    header.scratch_chunks *= parts;
  }
  if (header != static_cast<const Header&>(plan)) return wrong("its plan is another than that of the others");
  const Symmetry& symmetry = excerpt.symmetry;
  const Program& representative = excerpt.programs[symmetry.orbit_of(plan.self)];
  const Program expected = repeated(symmetry.turned(excerpt, representative, symmetry.turn_of(plan.self)), parts);
  if (expected.segment_ends != plan.program.segment_ends || expected.channels.size() != plan.program.channels.size()) {
    return wrong("it is not divided as its generator claims");
  }
  for (std::size_t c = 0; c < expected.channels.size(); ++c) {
    const Channel& own = plan.program.channels[c];
    const Channel& claimed = expected.channels[c];
    const auto as_claimed = [&](const Step& a, const Step& b) { return same(a, b, plan.accumulates_once); };
    if (!std::equal(own.begin(), own.end(), claimed.begin(), claimed.end(), as_claimed)) {
      return wrong("channel " + std::to_string(c) + " is not the image that its generator claims");
    }
  }
  return std::nullopt;
}

}  // namespace ringcore::plan
