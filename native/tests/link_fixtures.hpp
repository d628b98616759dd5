// What the tests of links share: child processes, pairs of links, streams whose bytes can be checked.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/link.hpp"
#include "transport/shm/link.hpp"
#include "transport/shm/segment.hpp"
#include "transport/tcp/link.hpp"

namespace ringcore::test {

using transport::kControlLane;
using transport::kLaneCount;
using transport::Link;
using transport::Segment;

// Far more than any wait here takes; what passes it hangs.
inline constexpr int kHangMilliseconds = 20'000;

// A real process that runs `body` and exits with 0 if that returned true.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    int code = 2;
    try {
      code = body() ? 0 : 1;
    } catch (...) {
    }
    ::_exit(code);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) {
      kill();
      wait();
    }
  }
  pid_t pid() const { return pid_; }
  void kill() { ::kill(pid_, SIGKILL); }
  // Its exit code; negative: the signal that ended it.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

inline std::pair<Fd, Fd> unix_pair() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) throw std::runtime_error("socketpair");
  return {Fd(sockets[0]), Fd(sockets[1])};
}

// Two connected TCP sockets on loopback. `buffer_bytes`: SO_SNDBUF and SO_RCVBUF, 0 for the kernel's choice.
inline std::pair<Fd, Fd> tcp_pair(int buffer_bytes = 0) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const Fd* fd : {&listener, &first}) {
    if (buffer_bytes == 0) continue;
    ::setsockopt(fd->get(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
    ::setsockopt(fd->get(), SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(buffer_bytes));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0 || ::connect(first.get(), generic, length) != 0) {
    throw std::runtime_error("no connection over loopback");
  }
  Fd second(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!second) throw std::runtime_error("accept");
  return {std::move(first), std::move(second)};
}

// So many of them: one side's ends, and the other's.
inline std::pair<std::vector<Fd>, std::vector<Fd>> several(int count,
                                                           const std::function<std::pair<Fd, Fd>()>& connect) {
  std::pair<std::vector<Fd>, std::vector<Fd>> sides;
  for (int i = 0; i < count; ++i) {
    auto [first, second] = connect();
    sides.first.push_back(std::move(first));
    sides.second.push_back(std::move(second));
  }
  return sides;
}

// Two ranks that share memory. `link(rank)` is to be called once for each, in whatever process or thread.
class ShmPair {
 public:
  ShmPair() : segments_{Segment::create(0, 2, kArenaBytes), Segment::create(1, 2, kArenaBytes)} {
    std::tie(sockets_[0], sockets_[1]) = unix_pair();
  }
  static constexpr std::size_t kArenaBytes = 16 << 20;
  const Segment& segment(Rank rank) const { return segments_[rank]; }
  std::unique_ptr<Link> link(Rank self) {
    const Rank peer = 1 - self;
    auto peers = std::make_shared<Segment>(Segment::attach(Fd(::dup(segments_[peer].fd())), peer, 2));
    return transport::make_shm_link(self, peer, segments_[self], std::move(peers), std::move(sockets_[self]));
  }
  // In a child: the parent's end must not stay open here.
  void drop(Rank rank) { Fd closed = std::move(sockets_[rank]); }

 private:
  Segment segments_[2];
  Fd sockets_[2];
};

// Two ranks with one socket for control and some for each lane of data.
class SocketPair {
 public:
  enum class Wire : std::uint8_t { kClear, kEncrypted };

  explicit SocketPair(const std::function<std::pair<Fd, Fd>()>& connect, int stripes = 1, Wire wire = Wire::kClear) {
    for (int socket = 0; socket < 1 + stripes * (kLaneCount - 1); ++socket) {
      auto [first, second] = connect();
      ends_[0].push_back(std::move(first));
      ends_[1].push_back(std::move(second));
      if (wire == Wire::kEncrypted) secrets_.push_back(secret(static_cast<unsigned char>(socket + 1)));
    }
  }
  static transport::TlsSecret secret(unsigned char seed) {
    transport::TlsSecret made;
    made.bytes.fill(std::byte{seed});
    return made;
  }
  std::unique_ptr<Link> link(Rank self) {
    return transport::make_tcp_link(self, 1 - self, std::move(ends_[self]), secrets_);
  }
  void drop(Rank rank) { ends_[rank].clear(); }
  int fd(Rank rank, int lane) const { return ends_[rank][static_cast<std::size_t>(lane)].get(); }

 private:
  std::vector<Fd> ends_[2];
  std::vector<transport::TlsSecret> secrets_;
};

// For loops in which the kernel carries something: `left` until that has taken far too long.
class Patience {
 public:
  bool left() const {
    ::sched_yield();
    return std::chrono::steady_clock::now() - begin_ < std::chrono::milliseconds(kHangMilliseconds);
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Sleeps as a driver of links does. False when nothing woke it in kHangMilliseconds: the wake-up was lost.
inline bool sleep_on(Link& link) {
  bool woken = true;
  if (!link.arm()) {
    std::vector<pollfd> fds;
    link.add_wait_fds(fds);
    if (fds.empty() && !link.failure()) {  // nothing wakes it
      ::poll(nullptr, 0, 1);
      return true;
    }
    int ready = 0;
    while ((ready = ::poll(fds.data(), fds.size(), kHangMilliseconds)) < 0 && errno == EINTR) {
    }
    woken = ready > 0;
  }
  link.disarm();
  return woken;
}

// Until what was taken has left: what is encrypted may wait for room.
inline bool send_the_rest(Link& link) {
  for (;;) {
    link.arm();
    link.disarm();
    if (!link.blocked()) return true;
    std::vector<pollfd> fds;
    link.add_wait_fds(fds);
    if (::poll(fds.data(), fds.size(), kHangMilliseconds) == 0) return false;
  }
}

// The byte at `index` of what `sender` sends on `lane`: a lost, doubled or misplaced byte does not fit.
inline std::byte stream_byte(Rank sender, int lane, std::uint64_t index) {
  const std::uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(sender * 16 + lane);
  return static_cast<std::byte>(mixed >> 56 ^ mixed >> 24);
}

// Sends `total` bytes on every lane and receives as many, in pieces of random size; sleeps at random when nothing
// moves. Returns whether everything arrived, and arrived right.
inline bool exchange_streams(Link& link, Rank self, std::uint64_t total, unsigned seed) {
  constexpr std::size_t kLongestPiece = 100'000;
  std::mt19937 random(seed + static_cast<unsigned>(self));
  std::uint64_t sent[kLaneCount] = {};
  std::uint64_t received[kLaneCount] = {};
  std::vector<std::byte> piece(kLongestPiece);
  const auto random_size = [&](std::uint64_t rest) {
    const std::size_t longest = random() % 4 == 0 ? kLongestPiece : 200;
    return static_cast<std::size_t>(std::min<std::uint64_t>(1 + random() % longest, rest));
  };
  const auto fits = [&](int lane, std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) {
      if (b != stream_byte(1 - self, lane, received[lane]++)) return false;
    }
    return true;
  };
  const auto complain = [&](const char* what, int lane) {
    std::fprintf(stderr, "rank %d %s, lane %d; sent", self, what, lane);
    for (const std::uint64_t bytes : sent) std::fprintf(stderr, " %llu", static_cast<unsigned long long>(bytes));
    std::fprintf(stderr, ", received");
    for (const std::uint64_t bytes : received) std::fprintf(stderr, " %llu", static_cast<unsigned long long>(bytes));
    std::fprintf(stderr, "\n");
    return false;
  };
  for (;;) {
    bool moved = false;
    bool done = true;
    for (int lane = 0; lane < kLaneCount; ++lane) {
      if (sent[lane] < total) {
        const std::size_t size = random_size(total - sent[lane]);
        for (std::size_t i = 0; i < size; ++i) piece[i] = stream_byte(self, lane, sent[lane] + i);
        const std::size_t taken = link.write(lane, {piece.data(), size});
        sent[lane] += taken;
        moved |= taken > 0;
      }
      if (received[lane] < total && random() % 2 == 0) {
        const std::size_t size = random_size(total - received[lane]);
        const std::size_t got = link.read(lane, {piece.data(), size});
        if (!fits(lane, {piece.data(), got})) return complain("read wrong bytes", lane);
        moved |= got > 0;
      } else if (received[lane] < total) {
        const std::span<const std::byte> view = link.peek(lane);
        const std::size_t size = view.empty() ? 0 : random_size(view.size());
        if (!fits(lane, view.first(size))) return complain("saw wrong bytes", lane);
        link.consume(lane, size);
        moved |= size > 0;
      }
      done &= sent[lane] == total && received[lane] == total;
    }
    if (done) return send_the_rest(link) || complain("could not send the rest", -1);
    if (!moved && link.ended()) return complain("lost the other side", -1);
    if (!moved && random() % 8 == 0 && !sleep_on(link)) return complain("was not woken", -1);
    if (!moved) ::sched_yield();
  }
}

// Sends a byte there and back, `rounds` times; each side sleeps before one read in `awake_reads`.
inline bool play_ping_pong(Link& link, Rank self, int rounds, unsigned awake_reads) {
  std::mt19937 random(static_cast<unsigned>(self));
  const auto lane = [](int round) { return round % kLaneCount; };
  for (int round = 0; round < rounds; ++round) {
    const std::byte ball{static_cast<unsigned char>(round)};
    if (self == 0 && link.write(lane(round), {&ball, 1}) != 1) return false;
    std::byte got{};
    for (bool sleepy = random() % awake_reads == 0; link.read(lane(round), {&got, 1}) == 0;) {
      if (link.failure() || (sleepy && !sleep_on(link))) return false;
      ::sched_yield();
    }
    if (got != ball) return false;
    if (self == 1 && link.write(lane(round), {&ball, 1}) != 1) return false;
  }
  return true;
}

}  // namespace ringcore::test
