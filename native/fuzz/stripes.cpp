// Bytes of a lane over one connection, or in blocks over several: the peer writes anything on any of them, and ends any.
#include "transport/tcp/stripes.hpp"

#include <array>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

constexpr std::size_t kConnections = 3;

// The two ends of a connection inside this host, over TCP or not.
std::array<Fd, 2> connected(bool over_tcp) {
  int fds[2];
  if (!over_tcp) {
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0, "there are sockets");
    return {Fd(fds[0]), Fd(fds[1])};
  }
  static const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  static sockaddr_in address{};
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (address.sin_family == AF_UNSPEC) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    require(::bind(listener.get(), generic, length) == 0 && ::listen(listener.get(), 1) == 0 &&
                ::getsockname(listener.get(), generic, &length) == 0,
            "this host listens");
  }
  std::array<Fd, 2> ends = {Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), Fd()};
  // Other programs may have taken all ports.
  if (::connect(ends[0].get(), generic, sizeof(address)) != 0) return connected(false);
  ends[1] = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  // Closed by a reset: after one in good order the port would be taken for a minute, and soon none would be left.
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  for (const Fd& end : ends) ::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  return ends;
}

struct Peer {
  std::vector<Fd> ends;
  std::vector<Fd> ours;

  Peer(std::size_t connections, bool over_tcp) {
    while (ends.size() < connections) {
      auto [end, other] = connected(over_tcp);
      ends.push_back(std::move(end));
      ours.push_back(std::move(other));
    }
  }
};

void act(transport::Stripes& stripes, Peer& peer, Input& bytes, const transport::LinkFailure& failure) {
  std::vector<pollfd> fds;
  Fd& end = peer.ends[bytes.below(peer.ends.size())];
  switch (bytes.below(8)) {
    case 0:
    case 1: {
      // The head of a block that may be meant, and something behind it.
      const std::array<std::uint32_t, 2> head = {bytes.take<std::uint8_t>(), bytes.take<std::uint8_t>()};
      [[maybe_unused]] const auto sent = ::send(end.get(), head.data(), sizeof(head), MSG_DONTWAIT | MSG_NOSIGNAL);
      [[fallthrough]];
    }
    case 2: {
      const Bytes piece = bytes.piece(bytes.take<std::uint8_t>());
      [[maybe_unused]] const auto sent = ::send(end.get(), piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      break;
    }
    case 3: {
      std::array<std::byte, 300> out;
      const std::size_t wanted = bytes.take<std::uint8_t>();
      require(stripes.read(std::span(out).first(wanted)) <= wanted, "no more is read than was asked for");
      break;
    }
    case 4: {
      const Bytes seen = stripes.peek();
      stripes.consume(std::min<std::size_t>(seen.size(), bytes.take<std::uint8_t>()));
      break;
    }
    case 5: stripes.expect(bytes.take<std::uint16_t>()); break;
    case 6:
      if (bytes.below(16) == 0) end = Fd();
      stripes.add_wait_fds(fds, !failure.reason, failure.reason.has_value());
      break;
    default:
      if (bytes.below(8) == 0) ::shutdown(end.get(), SHUT_WR);
      stripes.fill(failure.reason.has_value());
      if (stripes.ended()) stripes.fill(failure.reason.has_value());
      break;
  }
}

}  // namespace

void stripes(Bytes input) {
  Input bytes(input);
  const auto how = bytes.take<std::uint8_t>();
  Peer peer((how & 1) != 0 ? kConnections : 1, (how & 2) != 0);
  transport::LinkFailure failure;
  transport::Stripes stripes(std::move(peer.ours), failure);
  while (!bytes.empty()) act(stripes, peer, bytes, failure);
}

}  // namespace ringcore::fuzz
