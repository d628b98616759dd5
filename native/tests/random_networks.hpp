// Networks whose links differ, drawn at random.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>

#include "plan/topology.hpp"

namespace ringcore::testing {

// Hosts of one rank with cables between them, of rates over three orders of magnitude; some are cut, and every host can
// be reached.
class RandomNetworks {
 public:
  explicit RandomNetworks(std::uint64_t seed) : generator_(seed) {}

  double fraction() { return static_cast<double>(generator_() >> 11) * 0x1p-53; }
  int below(int bound) { return static_cast<int>(generator_() % static_cast<std::uint64_t>(bound)); }

  plan::Topology draw(int hosts) {
    plan::Topology topology{.host_of = std::vector<int>(static_cast<std::size_t>(hosts))};
    std::iota(topology.host_of.begin(), topology.host_of.end(), 0);
    topology.links.between_hosts = {};
    const double cut = fraction();
    const bool same_both_ways = below(2) == 0;
    for (int host = 1; host < hosts; ++host) {
      const int always = below(host);
      for (int other = 0; other < host; ++other) {
        if (other != always && fraction() < cut) continue;
        const double there = rate();
        const double back = same_both_ways ? there : rate();
        topology.links.cables.push_back({host, other, 0, 1 / there});
        topology.links.cables.push_back({other, host, 0, 1 / back});
      }
    }
    return topology;
  }

 private:
  double rate() { return 1e6 * std::pow(10, 3 * fraction()); }

  std::mt19937_64 generator_;
};

// Four hosts: quick cables between the first one and the others, slow ones among these.
inline plan::Topology star_of_four(double quick, double slow) {
  plan::Topology topology{.host_of = {0, 1, 2, 3}};
  topology.links.between_hosts = {.latency_s = 50e-6, .seconds_per_byte = 1 / quick, .message_s = 2.8e-6};
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      if (from != to) topology.links.cables.push_back({from, to, 50e-6, 1 / (from == 0 || to == 0 ? quick : slow)});
    }
  }
  return topology;
}

}  // namespace ringcore::testing
