// Bruck's algorithms on data: few transfers of many blocks, through which every block comes to where it belongs.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carriers/plans/executor.hpp"
#include "plan/generator.hpp"
#include "plan/planner.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;
using plan::Layout;

namespace {

// All ranks of one run, over simulated links.
class Exchange {
 public:
  Exchange(Collective collective, int ranks, std::vector<std::uint64_t> blocks)
      : collective_(collective), ranks_(ranks), blocks_(std::move(blocks)), network_(ranks, 7) {
    topology_.host_of.resize(static_cast<std::size_t>(ranks));
    std::iota(topology_.host_of.begin(), topology_.host_of.end(), 0);
    for (Rank rank = 0; rank < ranks; ++rank) place(rank);
  }

  // False: it came to a halt before all had ended.
  bool run() {
    const auto done = [](const auto& run) { return run->done(); };
    while (!std::ranges::all_of(runs_, done)) {
      const auto progress = [](bool moved, const auto& run) { return run->progress() || moved; };
      const bool moved = std::accumulate(runs_.begin(), runs_.end(), false, progress);
      if (!moved && !network_.step()) return false;
    }
    return true;
  }

  // What rank `from` gives rank `to`, of an all-gather everybody; element i.
  static std::int32_t value(Rank from, Rank to, std::uint64_t i) {
    return from * 10000 + to * 100 + static_cast<int>(i);
  }

  std::vector<std::int32_t> result(Rank rank) const { return data_[static_cast<std::size_t>(rank)]; }
  std::vector<std::int32_t> expected(Rank rank) const {
    std::vector<std::int32_t> all;
    for (Rank from = 0; from < ranks_; ++from) {
      const bool own = collective_ == Collective::kAlltoall && from == rank;
      for (std::uint64_t i = 0; i < blocks_[static_cast<std::size_t>(from)]; ++i) {
        all.push_back(own ? 0 : value(from, collective_ == Collective::kAlltoall ? rank : 0, i));
      }
    }
    return all;
  }
  std::uint64_t transfers(Rank rank) const {
    std::uint64_t sent = 0;
    for (const plan::Step& step : plans_[static_cast<std::size_t>(rank)]->program.channels[0]) {
      sent += step.kind == plan::StepKind::kSend ? 1 : 0;
    }
    return sent;
  }

 private:
  void place(Rank rank) {
    const bool exchanges = collective_ == Collective::kAlltoall;
    std::vector<std::int32_t>& data = data_.emplace_back();
    std::vector<std::int32_t>& input = inputs_.emplace_back();
    for (Rank to = 0; to < ranks_; ++to) {
      for (std::uint64_t i = 0; i < blocks_[static_cast<std::size_t>(to)]; ++i) {
        data.push_back(!exchanges && to == rank ? value(rank, 0, i) : 0);
        input.push_back(value(rank, to, i));
      }
    }
    const plan::PlanRequest request{.collective = collective_, .topology = &topology_};
    plans_.push_back(plan::generator("bruck").generate(request, rank));
    REQUIRE(plans_.back());
    plan::Operands operands{.dtype = DType::kInt32, .op = ReduceOp::kSum, .data_layout = Layout::blocks(blocks_, 1)};
    operands.input_layout = operands.data_layout;
    operands.data = reinterpret_cast<std::byte*>(data.data());
    operands.input = reinterpret_cast<const std::byte*>(input.data());
    scratch_.emplace_back(plans_.back()->scratch_chunks * operands.data_layout.largest());
    operands.scratch = reinterpret_cast<std::byte*>(scratch_.back().data());
    auto& links = links_.emplace_back(static_cast<std::size_t>(ranks_), nullptr);
    for (Rank peer = 0; peer < ranks_; ++peer) {
      if (peer == rank) continue;
      owned_.push_back(network_.link(rank, peer));
      links[static_cast<std::size_t>(peer)] = owned_.back().get();
    }
    runs_.push_back(std::make_unique<carriers::PlanRun>(*plans_.back(), operands, links, transport::kFirstDataLane, 1));
  }

  Collective collective_;
  int ranks_;
  std::vector<std::uint64_t> blocks_;
  transport::SimNetwork network_;
  plan::Topology topology_;
  std::vector<std::unique_ptr<transport::Link>> owned_;
  std::deque<std::vector<transport::Link*>> links_;
  std::deque<std::vector<std::int32_t>> data_;
  std::deque<std::vector<std::int32_t>> inputs_;
  std::deque<std::vector<std::int32_t>> scratch_;
  std::deque<std::optional<plan::Plan>> plans_;
  std::vector<std::unique_ptr<carriers::PlanRun>> runs_;
};

std::string chosen(int ranks, plan::Query query) {
  plan::Topology topology;
  for (Rank rank = 0; rank < ranks; ++rank) topology.host_of.push_back(rank);
  return plan::Planner(topology, 0, {}).choose(query).generator;
}

}  // namespace

TEST_CASE("blocks come to where they belong in few transfers of many") {
  for (const int ranks : {4, 5, 7, 8, 13}) {
    CAPTURE(ranks);
    const auto most = static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(ranks - 1)));
    std::vector<std::uint64_t> uneven;
    for (int rank = 0; rank < ranks; ++rank) uneven.push_back(static_cast<std::uint64_t>(rank * 7 % 5));
    // The last ones do not fit into a lane of the network at once.
    const std::vector<std::uint64_t> even(static_cast<std::size_t>(ranks), 3);
    const std::vector<std::uint64_t> large(static_cast<std::size_t>(ranks), 3000);
    for (const Collective collective : {Collective::kAlltoall, Collective::kAllgather}) {
      for (const std::vector<std::uint64_t>& blocks : {even, large, uneven}) {
        if (collective == Collective::kAlltoall && blocks == uneven) continue;
        Exchange exchange(collective, ranks, blocks);
        REQUIRE(exchange.run());
        for (Rank rank = 0; rank < ranks; ++rank) {
          CHECK(exchange.result(rank) == exchange.expected(rank));
          CHECK(exchange.transfers(rank) == most);
        }
      }
    }
  }
}

TEST_CASE("few bytes among many ranks go in few transfers, many bytes each to its own rank") {
  constexpr std::size_t kFew = 64 * 64;
  const plan::Query alltoall{.collective = Collective::kAlltoall, .bytes = kFew, .even_blocks = true};
  CHECK(chosen(64, alltoall) == "bruck");
  CHECK(chosen(64, {.collective = Collective::kAllgather, .bytes = kFew}) == "bruck");
  CHECK(chosen(64, {.collective = Collective::kAlltoall, .bytes = std::size_t{64} << 20, .even_blocks = true}) ==
        "direct");
  // Who passes a block on would have to know how large it is.
  CHECK(chosen(64, {.collective = Collective::kAlltoall, .bytes = kFew}) == "direct");
}
