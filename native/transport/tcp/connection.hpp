// One connected stream socket, encrypted or not, with the bytes that were received from it and not yet consumed.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/owned.hpp"
#include "transport/buffer.hpp"
#include "transport/link.hpp"
#include "transport/tcp/failure.hpp"
#include "transport/tcp/pace.hpp"
#include "transport/tcp/readiness.hpp"
#include "transport/tcp/tls.hpp"

namespace ringcore::transport {

// Never blocks.
class Connection {
 public:
  // Makes the socket non-blocking. Throws Error{kResource} when it refuses its options.
  Connection(Fd socket, LinkFailure& failure);

  // Encrypts from now on. Throws as Tls does.
  void encrypt(const TlsSecret& secret, Tls::Side side, Rank self);

  // From here on `readiness` sees its end. Of the one for control of the link to this peer it sees also what comes; then the
  // connection is read when that has been seen, and not whenever somebody looks.
  void watch(SocketReadiness& readiness, std::optional<Rank> bytes_of);

  int fd() const { return socket_.get(); }
  bool is_tcp() const { return is_tcp_; }
  bool is_encrypted() const { return tls_ != nullptr; }
  // Whether a write can succeed once the socket has room: not while the ends agree on their keys.
  bool takes_bytes() const { return tls_ == nullptr || tls_->is_open(); }
  // What was taken has not left yet, because the socket has no room.
  bool has_unsent() const { return tls_ != nullptr && tls_->has_unsent(); }
  // Keeps what was taken but not sent below this, so that the taken bytes show how fast the connection is.
  void limit_unsent(unsigned bytes);

  // From here on the kernel spreads what a round trip may carry over it, instead of sending all at once: the bursts of many
  // connections overflow the queues on their way, and each packet that is lost there costs round trips. Where the kernel
  // does not do that nothing changes.
  void pace_sends();

  // Where the way is long and the system allows it, what is lost on it does not slow the connection down.
  void keep_rate_over_long_way();

  // Sends from the front of `header`, then of `bytes`; returns how many bytes of both were taken.
  std::size_t send(std::span<const std::byte> header, std::span<const std::byte> bytes);

  Pace pace() const { return pace_.pace(fd()); }
  // Looks, once a second, whether the peer's host still acknowledges what is sent; fails when it has long ceased to.
  void check_answers(Nanoseconds now);

  // As those of Link, for one lane.
  std::span<const std::byte> peek();
  void consume(std::size_t bytes);
  std::size_t read(std::span<std::byte> out);
  // Receives what fits behind the buffered bytes, and sends what is unsent; true when something came.
  bool fill();
  void expect(std::size_t bytes) { expected_ = bytes; }
  // Goes on with agreeing on keys, and sends what is unsent; true when it can take bytes now.
  bool advance() { return tls_ != nullptr && tls_->advance(); }
  // Before a sleep: has the kernel wake it for what is expected, and not for less.
  void wake_for_expected();
  // A connection whose buffer is full waits for its reader, not for its peer.
  bool wants_bytes() const { return !ended_ && buffer_.size() < Buffer::kBytes; }
  // Nothing more can be received.
  bool ended() const { return ended_; }
  // Before it is closed: a socket with unread bytes is closed by a reset, which may cost the peer what was sent last.
  void drop_unread();
  // Who sleeps on the readiness of all sockets that are watched hears of this one's bytes.
  bool is_seen_with_others() const { return reads_when_seen_ && watch_->is_seen_with_others(); }
  // The peer may have closed it.
  bool may_be_closed() const { return watch_ == nullptr || watch_->closed(); }

 private:
  // Room for the longest record of control behind the rest of another.
  static_assert(Buffer::kBytes >= 2 * Link::kMaxContiguous);

  std::size_t receive(std::span<std::byte> out);
  std::size_t send_clear(std::span<const std::byte> header, std::span<const std::byte> bytes);
  std::size_t receive_clear(std::span<std::byte> out);

  Fd socket_;
  LinkFailure& failure_;
  std::unique_ptr<SocketReadiness::Watch> watch_;  // null: not watched; closed before the socket
  bool reads_when_seen_ = false;
  std::unique_ptr<Tls> tls_;
  bool is_tcp_ = false;
  SocketPace pace_;
  SocketAnswers answers_;
  Buffer buffer_;
  bool shown_ = false;  // `peek` returned all of the buffer, and none of it was consumed
  bool ended_ = false;
  std::size_t expected_ = 1;
  std::size_t wakes_for_ = 1;
  // The last call found less room than it was given: the next one does not ask the kernel. Room that there is by then is
  // found by the call after that, or by who polls.
  bool was_full_ = false;
};

}  // namespace ringcore::transport
