#include "transport/tcp.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

// Room for the longest record behind the rest of another.
constexpr std::size_t kBufferBytes = 2 * Link::kMaxContiguous;
// The heartbeat finds a silent peer long before; this is for processes in which it cannot run.
constexpr unsigned kUserTimeoutMilliseconds = 30'000;

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR;
}

// Bytes that were received and not yet consumed.
class Buffer {
 public:
  std::span<const std::byte> bytes() const { return {memory_.data() + begin_, end_ - begin_}; }
  bool empty() const { return begin_ == end_; }
  bool full() const { return end_ - begin_ == kBufferBytes; }
  // The free end of the memory, where the next bytes go. Moves the rest to the front when that makes more room.
  std::span<std::byte> room() {
    if (memory_.empty()) memory_.resize(kBufferBytes);
    if (begin_ > 0 && (empty() || end_ > kBufferBytes / 2)) {
      std::memmove(memory_.data(), memory_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    return {memory_.data() + end_, kBufferBytes - end_};
  }
  void added(std::size_t bytes) { end_ += bytes; }
  void consume(std::size_t bytes) { begin_ += bytes; }

 private:
  std::vector<std::byte> memory_;  // allocated when the lane is first peeked at
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

class TcpLink final : public Link {
 public:
  explicit TcpLink(std::vector<Fd> sockets) {
    for (int lane = 0; lane < kLaneCount; ++lane) {
      Fd& socket = sockets[static_cast<std::size_t>(lane)];
      is_tcp_ = set_options(socket);
      lane_of(lane).socket = std::move(socket);
    }
  }

  std::size_t write(int lane, std::span<const std::byte> bytes) override {
    if (failure_ || bytes.empty()) return 0;
    Lane& l = lane_of(lane);
    const ssize_t sent = ::send(l.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && !is_temporary(errno)) fail_with(errno);
    const std::size_t taken = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    l.short_write = taken < bytes.size();
    return taken;
  }

  std::span<const std::byte> peek(int lane) override {
    Lane& l = lane_of(lane);
    // Asks the kernel only when the caller has seen all there is: it wants more than that.
    if (l.buffer.empty() || l.shown) fill(l);
    l.shown = true;
    return l.buffer.bytes();
  }

  void consume(int lane, std::size_t bytes) override {
    Lane& l = lane_of(lane);
    l.buffer.consume(bytes);
    l.shown = false;
  }

  std::size_t read(int lane, std::span<std::byte> out) override {
    Lane& l = lane_of(lane);
    const std::span<const std::byte> buffered = l.buffer.bytes();
    if (buffered.empty()) return receive(l, out);
    const std::size_t taken = std::min(buffered.size(), out.size());
    std::copy_n(buffered.begin(), taken, out.begin());
    consume(lane, taken);
    return taken + (taken < out.size() ? receive(l, out.subspan(taken)) : 0);
  }

  std::optional<std::string> failure() const override { return failure_; }

  void check() override {
    std::array<pollfd, kLaneCount> sockets;
    for (std::size_t i = 0; i < sockets.size(); ++i) sockets[i] = {lanes_[i].socket.get(), POLLRDHUP, 0};
    if (failure_ || ::poll(sockets.data(), sockets.size(), 0) <= 0) return;
    for (const pollfd& socket : sockets) {
      int error_number = 0;
      socklen_t length = sizeof(error_number);
      if ((socket.revents & POLLERR) != 0) {
        ::getsockopt(socket.fd, SOL_SOCKET, SO_ERROR, &error_number, &length);
      }
      if (error_number != 0) {
        fail_with(error_number);
      } else if ((socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
        fail(kClosed);
      }
    }
  }

  // There is no bell: the sockets themselves wake the sleeper. Empties them first, so that only new bytes do.
  bool blocked() override {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.short_write; });
  }

  bool arm() override {
    bool news = false;
    for (Lane& lane : lanes_) news |= fill(lane);
    return std::exchange(failed_just_now_, false) || news;
  }

  void disarm() override {}

  void add_wait_fds(std::vector<pollfd>& fds) const override {
    if (failure_) return;
    for (const Lane& lane : lanes_) {
      // A lane whose buffer is full waits for its reader, not for its peer.
      const int readable = lane.buffer.full() ? 0 : POLLIN | POLLRDHUP;
      const int writable = lane.short_write ? POLLOUT : 0;
      if ((readable | writable) == 0) continue;
      fds.push_back({lane.socket.get(), static_cast<short>(readable | writable), 0});
    }
  }

  std::string_view transport() const override { return is_tcp_ ? "tcp" : "unix"; }

 private:
  static constexpr const char* kClosed = "closed the connection";

  struct Lane {
    Fd socket;
    Buffer buffer;
    bool shown = false;        // `peek` returned all of the buffer, and none of it was consumed
    bool short_write = false;  // the last write found the socket full
    bool ended = false;        // nothing more can be received
  };

  Lane& lane_of(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  // Returns whether it is a TCP socket.
  static bool set_options(const Fd& socket) {
    const int flags = ::fcntl(socket.get(), F_GETFL);
    if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) refuse("O_NONBLOCK");
    int domain = AF_UNSPEC;
    socklen_t length = sizeof(domain);
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) refuse("SO_DOMAIN");
    if (domain != AF_INET && domain != AF_INET6) return false;
    const int on = 1;
    if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) refuse("TCP_NODELAY");
    const unsigned timeout = kUserTimeoutMilliseconds;
    if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout)) != 0) {
      refuse("TCP_USER_TIMEOUT");
    }
    return true;  // The sizes of the kernel's buffers are left to its own tuning, which setting them would end.
  }

  [[noreturn]] static void refuse(const char* option) {
    throw Error(ErrorKind::kResource, with_errno(std::string("a lane's socket refuses ") + option, errno));
  }

  // Receives what fits behind the buffered bytes; true when something came.
  bool fill(Lane& lane) {
    if (lane.buffer.full() || lane.ended) return false;
    const std::size_t got = receive(lane, lane.buffer.room());
    lane.buffer.added(got);
    if (got > 0) lane.shown = false;
    return got > 0;
  }

  std::size_t receive(Lane& lane, std::span<std::byte> out) {
    if (lane.ended || out.empty()) return 0;
    const ssize_t got = ::recv(lane.socket.get(), out.data(), out.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && is_temporary(errno)) return 0;
    lane.ended = true;
    if (got == 0) {
      fail(kClosed);
    } else {
      fail_with(errno);
    }
    return 0;
  }

  void fail_with(int error_number) {
    switch (error_number) {
      case ECONNRESET:
      case EPIPE: return fail(with_errno("reset the connection", error_number));
      case ETIMEDOUT: return fail(with_errno("stopped answering", error_number));
      default: return fail(with_errno("lost the connection", error_number));
    }
  }

  void fail(std::string reason) {
    if (failure_) return;
    failure_ = std::move(reason);
    failed_just_now_ = true;
  }

  std::array<Lane, kLaneCount> lanes_;
  bool is_tcp_ = false;
  std::optional<std::string> failure_;
  bool failed_just_now_ = false;
};

}  // namespace

std::unique_ptr<Link> make_tcp_link(Rank self, Rank peer, std::vector<Fd> lanes) {
  if (lanes.size() != kLaneCount) {
    throw Error(ErrorKind::kInvalidArgument, "the link from rank " + std::to_string(self) + " to rank " +
                                                 std::to_string(peer) + " needs " + std::to_string(kLaneCount) +
                                                 " sockets, not " + std::to_string(lanes.size()));
  }
  return std::make_unique<TcpLink>(std::move(lanes));
}

}  // namespace ringcore::transport
