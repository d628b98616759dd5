#include "transport/tcp/lane_requests.hpp"

#include <cerrno>

#include <sys/eventfd.h>

#include "base/error.hpp"

namespace ringcore::transport {

LaneRequests::LaneRequests() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_.get() < 0) throw Error(ErrorKind::kResource, with_errno("cannot make an eventfd for late lanes", errno));
}

void LaneRequests::open(Rank peer, int lane) {
  const std::lock_guard guard(mutex_);
  requests_.emplace_back(peer, lane);
  ::eventfd_write(event_.get(), 1);
}

std::vector<std::pair<Rank, int>> LaneRequests::take() {
  const std::lock_guard guard(mutex_);
  eventfd_t ignored = 0;
  ::eventfd_read(event_.get(), &ignored);
  return std::exchange(requests_, {});
}

}  // namespace ringcore::transport
