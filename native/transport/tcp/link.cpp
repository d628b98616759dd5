#include "transport/tcp/link.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "base/error.hpp"
#include "transport/tcp/stripes.hpp"

namespace ringcore::transport {
namespace {

class TcpLink final : public Link {
 public:
  TcpLink(Rank self, Rank peer, std::vector<Fd> sockets, std::span<const TlsSecret> secrets) {
    constexpr std::size_t kDataLanes = kLaneCount - kFirstDataLane;
    const std::size_t stripes = (sockets.size() - kFirstDataLane) / kDataLanes;
    lanes_.reserve(kLaneCount);
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      std::vector<Fd> own;
      const std::size_t count = lane < kFirstDataLane ? 1 : stripes;
      own.reserve(count);
      for (std::size_t stripe = 0; stripe < count; ++stripe) {
        own.push_back(std::move(sockets[lane + stripe * kDataLanes]));
      }
      lanes_.emplace_back(std::move(own), failure_);
      for (std::size_t stripe = 0; stripe < count && !secrets.empty(); ++stripe) {
        const TlsSecret& secret = secrets[lane + stripe * kDataLanes];
        // The lower rank has dialled.
        lanes_.back().connections()[stripe].encrypt(secret, self < peer ? Tls::Side::kClient : Tls::Side::kServer,
                                                    self);
      }
    }
  }

  std::size_t write(int lane, std::span<const std::byte> bytes) override { return write(lane, bytes, {}); }
  // One packet where they fit into one.
  std::size_t write(int lane, std::span<const std::byte> first, std::span<const std::byte> rest) override {
    return failure_.reason || (first.empty() && rest.empty()) ? 0 : lane_of(lane).write(first, rest);
  }
  std::span<const std::byte> peek(int lane) override { return lane_of(lane).peek(); }
  void consume(int lane, std::size_t bytes) override { lane_of(lane).consume(bytes); }
  std::size_t read(int lane, std::span<std::byte> out) override { return lane_of(lane).read(out); }

  void expect(int lane, std::size_t bytes) override { lane_of(lane).expect(bytes); }

  std::optional<std::string> failure() const override { return failure_.reason; }

  bool ended() const override {
    return failure_.reason &&
           std::all_of(lanes_.begin(), lanes_.end(), [](const Stripes& lane) { return lane.ended(); });
  }

  void check() override {
    if (failure_.reason) return;
    check_fds_.clear();
    for (const Stripes& lane : lanes_) {
      for (const Connection& connection : lane.connections()) check_fds_.push_back({connection.fd(), POLLRDHUP, 0});
    }
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
        failure_.fail(LinkFailure::kClosed);
      }
    }
  }

  bool blocked() override {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const Stripes& lane) { return lane.blocked(); });
  }

  // There is no bell: the sockets themselves wake the sleeper. Empties them first, so that only new bytes do.
  bool arm() override {
    bool news = false;
    for (Stripes& lane : lanes_) news |= lane.fill();
    return std::exchange(failure_.just_now, false) || news;
  }

  void disarm() override {}

  void add_wait_fds(std::vector<pollfd>& fds) const override {
    for (const Stripes& lane : lanes_) lane.add_wait_fds(fds, !failure_.reason);
  }

  std::string_view transport() const override {
    const Connection& control = lanes_.front().connections().front();
    return control.is_encrypted() ? "tls" : control.is_tcp() ? "tcp" : "unix";
  }

 private:
  Stripes& lane_of(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  LinkFailure failure_;
  std::vector<Stripes> lanes_;
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
  return std::make_unique<TcpLink>(self, peer, std::move(sockets), secrets);
}

}  // namespace ringcore::transport
