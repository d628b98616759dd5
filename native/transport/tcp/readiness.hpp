// Which of many sockets have something to read: the kernel is asked once for all of them, and not once for each.
//
// A rank that has links with many others gets little from most of them. What `look` has not seen to be readable is not
// read.
#pragma once

#include <cstddef>
#include <memory>

#include "base/owned.hpp"

namespace ringcore::transport {

class Readiness {
 public:
  // Throws Error{kResource} where the system has no descriptor left.
  Readiness();
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  // What is known of one socket, as long as this lives. The socket is open for longer.
  class Watch {
   public:
    Watch(Readiness& readiness, int fd, bool for_bytes);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // Something may have come since `drained`: bytes, or the end.
    bool readable() const { return readable_ || readiness_.asks_each(); }
    // All that had come was read.
    void drained() { readable_ = closed_; }
    // The peer may have closed the connection.
    bool closed() const { return closed_ || readiness_.asks_each(); }

   private:
    friend class Readiness;
    Readiness& readiness_;
    int fd_;
    bool for_bytes_;
    bool readable_ = true;
    bool closed_ = false;
  };

  // From here on `look` says what becomes of the socket: with `for_bytes` what comes, otherwise its end alone. Throws
  // Error{kResource}.
  std::unique_ptr<Watch> watch(int fd, bool for_bytes) { return std::make_unique<Watch>(*this, fd, for_bytes); }
  // Asks the kernel what has happened since the last time.
  void look() {
    if (!asks_each()) ask();
  }

 private:
  // One call for all of them costs more than to read each of so few.
  static constexpr std::size_t kFew = 2;
  bool asks_each() const { return for_bytes_ <= kFew; }
  void ask();

  Fd epoll_;
  std::size_t for_bytes_ = 0;  // so many are watched for bytes
};

}  // namespace ringcore::transport
