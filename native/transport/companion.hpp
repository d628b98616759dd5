// What has descriptors and timers of its own beside the links, and wants to be looked after also while nothing waits
// for it: a switch that adds.
#pragma once

#include <vector>

#include "base/clock.hpp"

struct pollfd;

namespace ringcore::transport {

// All calls come from one thread at a time, as those of links do.
class Companion {
 public:
  virtual ~Companion() = default;
  // Called about once a millisecond while somebody drives the engine, and when one of the descriptors is ready.
  virtual void look_after() = 0;
  virtual void add_wait_fds(std::vector<pollfd>& fds) const = 0;
  // How long the caller may sleep where no descriptor becomes ready.
  virtual Nanoseconds longest_nap() const = 0;
};

}  // namespace ringcore::transport
