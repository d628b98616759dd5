// Which of many sockets have something to read: the kernel is asked once for all of them, and not once for each. What
// `look` has not seen to be readable is not read.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <poll.h>

#include "base/owned.hpp"
#include "transport/readiness.hpp"

namespace ringcore::transport {

class SocketReadiness final : public Readiness {
 public:
  // Throws Error{kResource} where the system has no descriptor left.
  SocketReadiness();

  // What is known of one socket, as long as this lives. The socket is open for longer.
  class Watch {
   public:
    Watch(SocketReadiness& readiness, int fd, std::optional<Rank> bytes_of);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // Something may have come since `drained`: bytes, or the end.
    bool readable() const { return bytes_of_ && readiness_.has_news(*bytes_of_); }
    // All that had come was read.
    void drained() { note(closed_); }
    // `add_wait_fds` stands for this one's descriptor, too.
    bool is_seen_with_others() const { return bytes_of_ && !readiness_.asks_each(); }
    // The peer may have closed the connection.
    bool closed() const { return closed_ || readiness_.asks_each(); }

   private:
    friend class SocketReadiness;
    void note(bool readable);

    SocketReadiness& readiness_;
    int fd_;
    std::optional<Rank> bytes_of_;
    bool closed_ = false;
  };

  // From here on `look` says what becomes of the socket: what comes, where it is the one for control of the link to this
  // peer, otherwise its end alone. Throws Error{kResource}.
  std::unique_ptr<Watch> watch(int fd, std::optional<Rank> bytes_of) {
    return std::make_unique<Watch>(*this, fd, bytes_of);
  }
  void look() override {
    if (!asks_each()) ask();
  }
  bool has_news(Rank peer) const override { return asks_each() || news_[static_cast<std::size_t>(peer)] != 0; }
  // Nothing where sockets are asked one by one.
  void add_wait_fds(std::vector<pollfd>& fds) const override {
    if (!asks_each()) fds.push_back({epoll_.get(), POLLIN, 0});
  }

 private:
  // One call for all of them costs more than to read each of so few.
  static constexpr std::size_t kFew = 2;
  bool asks_each() const { return for_bytes_ <= kFew; }
  void ask();

  Fd epoll_;
  std::size_t for_bytes_ = 0;  // so many are watched for bytes
  std::vector<char> news_;  // by peer: its socket is readable
};

}  // namespace ringcore::transport
