// A network of packets in virtual time, between workers and switches: it loses, doubles, delays and so reorders them.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "aggregation/wire.hpp"
#include "base/clock.hpp"

namespace ringcore::testing {

class PacketNetwork {
 public:
  struct Weather {
    double lost = 0;
    double doubled = 0;
    double late = 0;  // by much more than the others
    Nanoseconds longest = 200'000;
  };
  struct Arrival {
    int to = 0;
    int from = 0;
    std::vector<std::byte> bytes;
  };

  PacketNetwork(std::uint64_t seed, Weather weather) : random_(seed), weather_(weather) {}

  static aggregation::Address address_of(int node) {
    aggregation::Address address;
    std::memcpy(address.bytes.data(), &node, sizeof(node));
    address.size = sizeof(node);
    return address;
  }

  void send(int from, aggregation::Outbox& out, Nanoseconds now) {
    for (const auto& item : out.items()) {
      int to = 0;
      std::memcpy(&to, item.to.bytes.data(), sizeof(to));
      const std::span<const std::byte> bytes = out.bytes(item);
      for (int copies = chance(weather_.doubled) ? 2 : 1; copies > 0; --copies) {
        if (chance(weather_.lost)) continue;
        Nanoseconds delay = 1'000 + static_cast<Nanoseconds>(random_() % static_cast<std::uint64_t>(weather_.longest));
        if (chance(weather_.late)) delay += static_cast<Nanoseconds>(random_() % (50 * kMillisecond));
        arrivals_.emplace(now + delay, Arrival{to, from, {bytes.begin(), bytes.end()}});
      }
    }
    out.clear();
  }

  bool empty() const { return arrivals_.empty(); }
  Nanoseconds next() const { return arrivals_.begin()->first; }
  Arrival take() {
    Arrival arrival = std::move(arrivals_.begin()->second);
    arrivals_.erase(arrivals_.begin());
    return arrival;
  }

  bool chance(double of) { return std::uniform_real_distribution<>(0, 1)(random_) < of; }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

 private:
  std::mt19937_64 random_;
  Weather weather_;
  std::multimap<Nanoseconds, Arrival> arrivals_;
};

}  // namespace ringcore::testing
