// Lanes that links have asked for, for a thread that connects them: it sleeps on a descriptor.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "base/owned.hpp"
#include "transport/tcp/link.hpp"

namespace ringcore::transport {

class LaneRequests final : public LaneOpener {
 public:
  // Throws Error{kResource} where the system has no descriptor left.
  LaneRequests();

  void open(Rank peer, int lane) override;

  // Readable when there is something to take.
  int fd() const { return event_.get(); }
  // By peer and lane, in the order in which they were asked for.
  std::vector<std::pair<Rank, int>> take();

 private:
  Fd event_;
  std::mutex mutex_;  // Guards: requests_.
  std::vector<std::pair<Rank, int>> requests_;
};

}  // namespace ringcore::transport
