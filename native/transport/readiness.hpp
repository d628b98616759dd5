// Which links have something to read on lane 0, seen once for all of them: a rank that has links with many others gets
// little from most of them at a time.
#pragma once

#include <vector>

#include <poll.h>

#include "base/types.hpp"

namespace ringcore::transport {

class Readiness {
 public:
  Readiness() = default;
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;
  virtual ~Readiness() = default;

  // Sees what has come since the last time.
  virtual void look() = 0;
  // Whether the link to this peer, which `is_watched`, has anything that nobody has peeked at.
  virtual bool has_news(Rank peer) const = 0;
  // What to sleep on until `look` finds something more.
  virtual void add_wait_fds(std::vector<pollfd>& fds) const = 0;
};

}  // namespace ringcore::transport
