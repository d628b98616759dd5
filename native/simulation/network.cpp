#include "simulation/network.hpp"

#include <string>

#include "base/error.hpp"

namespace ringcore::simulation {

Network Network::of(int ranks, int hosts, const plan::Links& links) {
  if (ranks < 1 || hosts < 1 || hosts > ranks) {
    throw Error(ErrorKind::kInvalidArgument, std::to_string(ranks) + " ranks cannot stand on " + std::to_string(hosts) +
                                                 " hosts. Remedy: name at least one rank for each host.");
  }
  Network network;
  network.topology.links = links;
  network.topology.host_of.reserve(static_cast<std::size_t>(ranks));
  for (int host = 0; host < hosts; ++host) {
    const int local = ranks / hosts + (host < ranks % hosts ? 1 : 0);
    network.topology.host_of.insert(network.topology.host_of.end(), static_cast<std::size_t>(local), host);
  }
  return network;
}

}  // namespace ringcore::simulation
