// What the kernel measures on a TCP connection, looked at while it sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.hpp"
#include "transport/pace.hpp"

namespace ringcore::transport {

// How long ago something came over a connection, or it was made, if nothing has yet; in milliseconds at the finest.
std::optional<Nanoseconds> silence_of(int fd);

// Whether a peer's host still answers. A way of its own may be cut while the heart beats on another. TCP_USER_TIMEOUT is not
// for this: it also ends a connection whose peer's host answers, but whose peer has not read for so long, as other data
// keeps it.
class SocketAnswers {
 public:
  // So many looks in a row have found data on its way, and none acknowledged since the look before. They are counted, as
  // time also passes while this process, or its machine, stands still.
  static constexpr int kPatience = 30;
  static constexpr Nanoseconds kInterval = kSecond;

  bool have_ceased(int fd, Nanoseconds now);

  // Whether it is time for a look, which then counts as taken.
  bool is_due(Nanoseconds now);
  struct Sent {
    std::uint64_t acknowledged = 0;  // bytes
    bool is_under_way = false;  // data, or a question whether there is room for it
  };
  bool have_ceased(const Sent& sent);

 private:
  Nanoseconds looked_at_ = 0;
  std::uint64_t acknowledged_ = 0;
  int without_ = 0;
};

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
