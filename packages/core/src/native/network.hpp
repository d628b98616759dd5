// What lies between hosts, as Python says it: ringcore/network/cables.py.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "plan/topology.hpp"

namespace ringcore::python {

// (from, to, latency, bytes a second)
using CableTuple = std::tuple<int, int, double, double>;
// (latency, bytes a second) of the usual way between hosts, and cables where they differ
using NetworkTuple = std::tuple<double, double, std::vector<CableTuple>>;

inline plan::Links links_of(const NetworkTuple& told) {
  plan::Links links;
  links.told = true;
  const auto& [latency_s, bytes_per_s, cables] = told;
  links.between_hosts.latency_s = latency_s;
  links.between_hosts.seconds_per_byte = 1 / bytes_per_s;
  for (const auto& [from, to, cable_latency_s, cable_bytes_per_s] : cables) {
    links.cables.push_back({from, to, cable_latency_s, 1 / cable_bytes_per_s});
  }
  return links;
}

// Of a job that is not there. `host_of`: by node; the last `serving` of them are no ranks.
inline plan::Topology topology_of(std::vector<int> host_of, int serving, const NetworkTuple& told, double message_s) {
  plan::Topology topology{.host_of = std::move(host_of), .serving = serving, .links = links_of(told)};
  topology.links.between_hosts.message_s = message_s;
  return topology;
}

}  // namespace ringcore::python
