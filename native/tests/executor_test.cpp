// What a run of a plan keeps, whatever the number of ranks.
#include <doctest/doctest.h>

#include <malloc.h>

#include <memory>
#include <vector>

#include "carriers/plans/executor.hpp"
#include "plan/generator.hpp"
#include "transport/sim/network.hpp"

using namespace ringcore;

TEST_CASE("a run keeps something for the ranks that its plan names, and asks for their lanes only") {
  constexpr int kRanks = 10'000;
  plan::Topology topology{.host_of = std::vector<int>(kRanks, 0)};
  const plan::PlanRequest request{.collective = Collective::kBroadcast, .topology = &topology};
  const auto plan = plan::generator("double_tree").generate(request, 1);
  REQUIRE(plan);
  REQUIRE(plan->neighbours().size() <= 4);
  transport::SimNetwork network(2, 1);
  const std::unique_ptr<transport::Link> link = network.link(0, 1);
  // Nobody is connected with a rank that the plan does not name.
  std::vector<transport::Link*> links(kRanks, nullptr);
  for (const Rank peer : plan->neighbours()) links[static_cast<std::size_t>(peer)] = link.get();
  plan::Operands operands{.dtype = DType::kFloat32, .op = ReduceOp::kSum};
  const std::size_t before = mallinfo2().uordblks;
  const carriers::PlanRun run(*plan, operands, links, transport::kFirstDataLane, 1);
  const std::size_t bytes = mallinfo2().uordblks - before;
  CHECK_MESSAGE(bytes < 4096, "a run of four peers keeps " << bytes << " B");
  CHECK_FALSE(run.waits_for(kRanks - 1));
}
