// Networks of any shape and speed: every rank finds the same plan, and it is proven.
#include <cmath>

#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "plan/planner.hpp"

namespace ringcore::fuzz {
namespace {

double some_time(Input& bytes) { return std::ldexp(1.0 + bytes.below(16), -static_cast<int>(bytes.below(48))); }

plan::Topology some_topology(Input& bytes) {
  plan::Topology topology;
  const std::size_t ranks = 2 + bytes.below(7);
  for (std::size_t i = 0; i < ranks; ++i) topology.host_of.push_back(static_cast<int>(bytes.below(4)));
  topology.memory_shared_in_host = bytes.flip();
  for (plan::LinkCost* cost : {&topology.links.in_host, &topology.links.between_hosts}) {
    *cost = {.latency_s = some_time(bytes), .seconds_per_byte = some_time(bytes), .message_s = some_time(bytes)};
  }
  for (std::size_t cables = bytes.below(12); cables > 0; --cables) {
    topology.links.cables.push_back({.from = static_cast<int>(bytes.below(8)),
                                     .to = static_cast<int>(bytes.below(8)),
                                     .latency_s = some_time(bytes),
                                     .seconds_per_byte = some_time(bytes)});
  }
  return topology;
}

}  // namespace

void plans(Bytes input) {
  Input bytes(input);
  const plan::Topology topology = some_topology(bytes);
  plan::Query query;
  query.collective = static_cast<Collective>(bytes.below(kCollectiveCount - 1));
  query.bytes = bytes.take<std::uint32_t>() >> bytes.below(32);
  query.dtype = static_cast<DType>(bytes.below(kDTypeCount));
  query.root = static_cast<Rank>(bytes.below(topology.host_of.size()));
  query.registered = bytes.flip();
  query.inputs_ready = query.registered && bytes.flip();
  query.deterministic = bytes.flip();
  if (query.collective == Collective::kAllreduce) {
    query.compression = static_cast<Compression>(bytes.below(kCompressionCount));
  }
  const plan::Plan* first = nullptr;
  plan::Planner planner(topology, 0, {});
  plan::Planner other(topology, topology.ranks() - 1, {});
  for (plan::Planner* each : {&planner, &other}) {
    try {
      const plan::Plan& chosen = each->choose(query);
      require(first == nullptr || static_cast<const plan::Header&>(chosen) == *first, "all ranks have the same plan");
      first = &chosen;
    } catch (const Error&) {
      require(false, "there is a plan, and it is right");
    }
  }
}

}  // namespace ringcore::fuzz
