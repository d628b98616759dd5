// What the kernel measures on a TCP connection, looked at while it sends.
#pragma once

#include <cstddef>
#include <optional>

#include "base/clock.hpp"
#include "transport/pace.hpp"

namespace ringcore::transport {

// How long ago something came over a connection, or it was made, if nothing has yet; in milliseconds at the finest.
std::optional<Nanoseconds> silence_of(int fd);

class SocketPace {
 public:
  // So many bytes more were given to the socket.
  void sent(int fd, std::size_t bytes);
  Pace pace(int fd) const;

 private:
  std::size_t since_ = 0;  // bytes since the last sample
  PaceSamples samples_;
};

}  // namespace ringcore::transport
