#include "transport/tcp/link.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "transport/tcp/stripes.hpp"

namespace ringcore::transport {
namespace {

class TcpLink final : public LaneLink {
 public:
  TcpLink(Rank self, Rank peer, LaneOpener* opener, SocketReadiness* readiness)
      : self_(self), peer_(peer), opener_(opener), readiness_(readiness) {}
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;
  ~TcpLink() override {
    for (std::optional<Stripes>& lane : lanes_) {
      if (!lane) continue;
      for (Connection& connection : lane->connections()) connection.drop_unread();
    }
  }

  void attach(int lane, std::vector<Fd> sockets, std::span<const TlsSecret> secrets) override {
    std::optional<Stripes>& made = lanes_[static_cast<std::size_t>(lane)];
    if (made) throw Error(ErrorKind::kInvalidArgument, describe(lane) + " is there already");
    if (sockets.empty() || (!secrets.empty() && secrets.size() != sockets.size())) {
      throw Error(ErrorKind::kInvalidArgument, describe(lane) + " was given " + std::to_string(sockets.size()) +
                                                   " sockets and " + std::to_string(secrets.size()) + " secrets");
    }
    made.emplace(std::move(sockets), failure_);
    for (std::size_t stripe = 0; stripe < secrets.size(); ++stripe) {
      // The lower rank has dialled.
      const Tls::Side side = self_ < peer_ ? Tls::Side::kClient : Tls::Side::kServer;
      made->connections()[stripe].encrypt(secrets[stripe], side, self_);
    }
    if (readiness_ == nullptr) return;
    // A lane of data is read only while an operation waits for it, and its socket may be told to wait for more.
    for (Connection& connection : made->connections()) {
      connection.watch(*readiness_, lane == kControlLane ? std::optional(peer_) : std::nullopt);
    }
  }

  bool is_watched() const override {
    if (!has(kControlLane)) return false;
    const Connection& control = lanes_.front()->connections().front();
    return control.is_seen_with_others() && control.takes_bytes();
  }

  void give_up(const std::string& why) override { failure_.fail(why); }

  // Data comes with control: that is where the peer says that it lives.
  void want(int lane) override {
    if (has(lane)) return;
    for (const int needed : {kControlLane, lane}) {
      if (!has(needed)) opener_->open(peer_, needed);
    }
  }
  bool has(int lane) const override { return lanes_[static_cast<std::size_t>(lane)].has_value(); }

  std::size_t write(int lane, std::span<const std::byte> bytes) override { return write(lane, bytes, {}); }
  // One packet where they fit into one.
  std::size_t write(int lane, std::span<const std::byte> first, std::span<const std::byte> rest) override {
    return failure_.reason || (first.empty() && rest.empty()) || !lane_of(lane) ? 0 : lane_of(lane)->write(first, rest);
  }
  std::span<const std::byte> peek(int lane) override {
    return lane_of(lane) ? lane_of(lane)->peek() : std::span<const std::byte>();
  }
  void consume(int lane, std::size_t bytes) override { lane_of(lane)->consume(bytes); }
  std::size_t read(int lane, std::span<std::byte> out) override { return lane_of(lane) ? lane_of(lane)->read(out) : 0; }

  void expect(int lane, std::size_t bytes) override {
    if (lane_of(lane)) lane_of(lane)->expect(bytes);
  }

  std::optional<std::string> failure() const override { return failure_.reason; }

  bool ended() const override {
    return failure_.reason &&
           std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return !lane || lane->ended(); });
  }

  bool last_words_may_come() const override { return failure_.closed && has(kControlLane) && !lanes_.front()->ended(); }

  void check() override {
    const Nanoseconds now = SteadyClock().now();
    check_fds_.clear();
    for (std::optional<Stripes>& lane : lanes_) {
      if (!lane) continue;
      for (Connection& connection : lane->connections()) {
        if (failure_.reason) return;
        connection.check_answers(now);
        if (connection.may_be_closed()) check_fds_.push_back({connection.fd(), POLLRDHUP, 0});
      }
    }
    if (check_fds_.empty()) return;
    if (::poll(check_fds_.data(), check_fds_.size(), 0) <= 0) return;
    for (const pollfd& socket : check_fds_) {
      int error_number = 0;
      socklen_t length = sizeof(error_number);
      if ((socket.revents & POLLERR) != 0) {
        ::getsockopt(socket.fd, SOL_SOCKET, SO_ERROR, &error_number, &length);
      }
      if (error_number != 0) {
        failure_.fail_with(error_number);
      } else if ((socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
        failure_.close();
      }
    }
  }

  bool blocked() override {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane && lane->blocked(); });
  }

  bool holds_unsent() const override {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane && lane->holds_unsent(); });
  }

  // There is no bell: the sockets themselves wake the sleeper. Empties them first, so that only new bytes do.
  bool arm() override {
    bool news = false;
    for (int lane = 0; lane < kLaneCount; ++lane) news |= has(lane) && lane_of(lane)->fill(takes_all(lane));
    return std::exchange(failure_.just_now, false) || news;
  }

  void disarm() override {}

  void add_wait_fds(std::vector<pollfd>& fds) const override {
    for (int lane = 0; lane < kLaneCount; ++lane) {
      if (has(lane)) lanes_[static_cast<std::size_t>(lane)]->add_wait_fds(fds, !failure_.reason, takes_all(lane));
    }
  }

  std::optional<Nanoseconds> data_silence() const override {
    std::optional<Nanoseconds> shortest;
    for (int lane = kFirstDataLane; lane < kLaneCount; ++lane) {
      if (!has(lane)) continue;
      for (const Connection& connection : lanes_[static_cast<std::size_t>(lane)]->connections()) {
        const std::optional<Nanoseconds> silence = silence_of(connection.fd());
        if (silence && (!shortest || *silence < *shortest)) shortest = silence;
      }
    }
    return shortest;
  }

  // The quickest lane of data, with all of its stripes.
  Pace pace() const override {
    Pace best;
    for (const std::optional<Stripes>& lane : lanes_) {
      if (!lane) continue;
      const Pace pace = lane->pace();
      best.bytes_per_s = std::max(best.bytes_per_s, pace.bytes_per_s);
      best.mean_bytes_per_s = std::max(best.mean_bytes_per_s, pace.mean_bytes_per_s);
      best.sure = best.sure || pace.sure;
      if (best.latency_s == 0 || (pace.latency_s > 0 && pace.latency_s < best.latency_s))
        best.latency_s = pace.latency_s;
    }
    return best;
  }

  std::string_view transport() const override {
    if (!has(kControlLane)) return "tcp";
    const Connection& control = lanes_.front()->connections().front();
    return control.is_encrypted() ? "tls" : control.is_tcp() ? "tcp" : "unix";
  }

 private:
  // Control is for whoever comes by, and of a link that has failed all is taken that still comes, up to its end.
  bool takes_all(int lane) const { return lane == kControlLane || failure_.reason.has_value(); }
  std::optional<Stripes>& lane_of(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  std::string describe(int lane) const {
    return "lane " + std::to_string(lane) + " from rank " + std::to_string(self_) + " to rank " + std::to_string(peer_);
  }

  Rank self_;
  Rank peer_;
  LaneOpener* opener_;  // null: all lanes are there
  SocketReadiness* readiness_;  // null: each socket is asked by itself
  LinkFailure failure_;
  std::array<std::optional<Stripes>, kLaneCount> lanes_;
  std::vector<pollfd> check_fds_;  // kept, because `check` is called often
};

}  // namespace

std::unique_ptr<Link> make_tcp_link(Rank self, Rank peer, std::vector<Fd> sockets, std::span<const TlsSecret> secrets) {
  constexpr std::size_t kDataLanes = kLaneCount - kFirstDataLane;
  if (sockets.size() < kLaneCount || (sockets.size() - kFirstDataLane) % kDataLanes != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "the link from rank " + std::to_string(self) + " to rank " + std::to_string(peer) +
                    " needs a socket for control and the same number for each of " + std::to_string(kDataLanes) +
                    " lanes of data, not " + std::to_string(sockets.size()) + " sockets");
  }
  if (!secrets.empty() && secrets.size() != sockets.size()) {
    throw Error(ErrorKind::kInvalidArgument, "the link from rank " + std::to_string(self) + " to rank " +
                                                 std::to_string(peer) + " has " + std::to_string(sockets.size()) +
                                                 " sockets, but " + std::to_string(secrets.size()) + " secrets");
  }
  auto link = std::make_unique<TcpLink>(self, peer, nullptr, nullptr);
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    std::vector<Fd> own;
    std::vector<TlsSecret> own_secrets;
    for (std::size_t i = lane; i < sockets.size(); i += kDataLanes) {
      own.push_back(std::move(sockets[i]));
      if (!secrets.empty()) own_secrets.push_back(secrets[i]);
      if (lane < kFirstDataLane) break;
    }
    link->attach(static_cast<int>(lane), std::move(own), own_secrets);
  }
  return link;
}

std::unique_ptr<LaneLink> make_tcp_link(Rank self, Rank peer, Fd control, std::span<const TlsSecret> secrets,
                                        LaneOpener& opener, SocketReadiness& readiness) {
  auto link = std::make_unique<TcpLink>(self, peer, &opener, &readiness);
  std::vector<Fd> sockets;
  sockets.push_back(std::move(control));
  link->attach(kControlLane, std::move(sockets), secrets);
  return link;
}

std::unique_ptr<LaneLink> make_tcp_link(Rank self, Rank peer, LaneOpener& opener, SocketReadiness& readiness) {
  return std::make_unique<TcpLink>(self, peer, &opener, &readiness);
}

}  // namespace ringcore::transport
