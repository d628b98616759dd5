// What the kernel measures on a TCP connection, looked at while it sends.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "base/clock.hpp"
#include "transport/pace.hpp"

namespace ringcore::transport {

// How long ago something came over a connection, or it was made, if nothing has yet; in milliseconds at the finest.
std::optional<Nanoseconds> silence_of(int fd);

class PaceSamples {
 public:
  // So many bytes more were given to the socket.
  void sent(int fd, std::size_t bytes);
  // The rate is the median of the latest samples: single ones are off by several times, where a bucket of tokens was
  // full or the machine is loaded.
  Pace pace(int fd) const;

 private:
  static constexpr std::size_t kKept = 15;
  static constexpr std::size_t kSure = 5;
  std::size_t since_ = 0;  // bytes since the last sample
  std::size_t taken_ = 0;  // samples
  std::array<double, kKept> rates_{};
};

}  // namespace ringcore::transport
