// How much sums of float32 lose among many ranks, by the order in which plans add them: against sums of float64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/excerpt.hpp"
#include "plan/generator.hpp"

using namespace ringcore;
using namespace ringcore::plan;

namespace {

// Runs all ranks' programs on one value a chunk; how far the worst result is off, in units of rounding of the sum.
class Sum {
 public:
  Sum(const char* name, int ranks) : topology_{.host_of = std::vector<int>(static_cast<std::size_t>(ranks), 0)} {
    const PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology_};
    plan_ = *excerpt(generator(name), request, Symmetry::none(ranks), SIZE_MAX);
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> value(0.5F, 1.5F);
    exact_.assign(plan_.chunks, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<float>& own = data_.emplace_back();
      for (std::uint32_t chunk = 0; chunk < plan_.chunks; ++chunk) {
        own.push_back(value(generator));
        exact_[chunk] += static_cast<double>(own.back());
      }
      scratch_.emplace_back(plan_.scratch_chunks, 0.0F);
    }
  }

  double error() {
    std::vector<std::size_t> next(plan_.programs.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < next.size(); ++rank) {
        REQUIRE(plan_.programs[rank].channels.size() == 1);
        const Channel& steps = plan_.programs[rank].channels[0];
        while (next[rank] < steps.size() && run(static_cast<Rank>(rank), steps[next[rank]])) {
          ++next[rank];
          moved = true;
        }
      }
    }
    double worst = 0;
    for (std::size_t rank = 0; rank < next.size(); ++rank) {
      REQUIRE(next[rank] == plan_.programs[rank].channels[0].size());
      for (std::uint32_t chunk = 0; chunk < plan_.chunks; ++chunk) {
        CHECK(data_[rank][chunk] == data_[0][chunk]);  // bitwise the same everywhere
        worst = std::max(worst, std::abs(static_cast<double>(data_[rank][chunk]) - exact_[chunk]) / exact_[chunk]);
      }
    }
    return worst / std::numeric_limits<float>::epsilon();
  }

 private:
  float& at(const ChunkRef& ref) {
    auto& memory = ref.buffer == Buffer::kScratch ? scratch_ : data_;
    return memory[static_cast<std::size_t>(ref.rank)][ref.chunk];
  }

  bool run(Rank rank, const Step& step) {
    switch (step.kind) {
      case StepKind::kSend: sent_[{rank, step.peer}].push_back(at(step.sources[0])); return true;
      case StepKind::kSignal:
      case StepKind::kWait: return true;
      case StepKind::kReduce: {
        float sum = at(step.sources[0]);
        for (std::size_t i = 1; i < step.sources.size(); ++i) sum += at(step.sources[i]);
        for (const ChunkRef& target : step.targets) at(target) = sum;
        return true;
      }
      case StepKind::kRecv:
      case StepKind::kRecvReduce: {
        std::deque<float>& arriving = sent_[{step.peer, rank}];
        if (arriving.empty()) return false;
        float& target = at(step.targets[0]);
        target = step.kind == StepKind::kRecv ? arriving.front() : target + arriving.front();
        arriving.pop_front();
        return true;
      }
    }
    __builtin_unreachable();
  }

  Topology topology_;
  Excerpt plan_;
  std::vector<std::vector<float>> data_;
  std::vector<std::vector<float>> scratch_;
  std::vector<double> exact_;
  std::map<std::pair<Rank, Rank>, std::deque<float>> sent_;
};

}  // namespace

TEST_CASE("sums along trees lose as much as their depth among many ranks, sums around a ring no more than its length") {
  for (const int ranks : {2, 16, 65, 128, 256}) {
    const double depth = std::ceil(std::log2(ranks));
    CAPTURE(ranks);
    // Each of the additions on the longest way rounds by half a unit at most; a binary tree has two in a level.
    CHECK(Sum("ring", ranks).error() <= 0.5 * (ranks - 1));
    CHECK(Sum("binomial_tree", ranks).error() <= 0.5 * depth);
    CHECK(Sum("recursive_doubling", ranks).error() <= 0.5 * (depth + 1));
    if (ranks < 4) continue;
    CHECK(Sum("pat", ranks).error() <= 0.5 * depth);
    CHECK(Sum("double_tree", ranks).error() <= 0.5 * 2 * (depth + 1));
  }
}

TEST_CASE("among many ranks a tree is more accurate than a ring") {
  constexpr int kRanks = 256;
  const double ring = Sum("ring", kRanks).error();
  for (const char* name : {"pat", "recursive_doubling", "double_tree"}) {
    const double tree = Sum(name, kRanks).error();
    MESSAGE(std::string(name) << ": " << tree << " units of rounding, ring: " << ring);
    CHECK(tree < ring);
  }
}
