// Bytes of a lane over one connection, or in blocks over several: the peer writes anything on any of them, and ends any.
#include "transport/tcp/stripes.hpp"

#include <array>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

constexpr std::size_t kConnections = 3;

struct Peer {
  std::vector<Fd> ends;
  std::vector<Fd> ours;

  explicit Peer(std::size_t connections) {
    while (ends.size() < connections) {
      int fds[2];
      require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0, "there are sockets");
      ends.emplace_back(fds[0]);
      ours.emplace_back(fds[1]);
    }
  }
};

void act(transport::Stripes& stripes, Peer& peer, Input& bytes, std::size_t& given) {
  const Fd& end = peer.ends[bytes.below(peer.ends.size())];
  switch (bytes.below(7)) {
    case 0:
    case 1: {
      // The head of a block that may be meant, and something behind it.
      const std::array<std::uint32_t, 2> head = {bytes.take<std::uint8_t>(), bytes.take<std::uint8_t>()};
      [[maybe_unused]] const auto sent = ::send(end.get(), head.data(), sizeof(head), MSG_DONTWAIT | MSG_NOSIGNAL);
      [[fallthrough]];
    }
    case 2: {
      const Bytes piece = bytes.piece(bytes.take<std::uint8_t>());
      const ssize_t sent = ::send(end.get(), piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) given += static_cast<std::size_t>(sent);
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
    default:
      if (bytes.below(8) == 0) ::shutdown(end.get(), SHUT_WR);
      stripes.fill();
      break;
  }
}

}  // namespace

void stripes(Bytes input) {
  Input bytes(input);
  Peer peer(bytes.flip() ? kConnections : 1);
  transport::LinkFailure failure;
  transport::Stripes stripes(std::move(peer.ours), failure);
  std::size_t given = 0;
  std::vector<pollfd> fds;
  while (!bytes.empty()) act(stripes, peer, bytes, given);
  stripes.add_wait_fds(fds, !failure.reason);
}

}  // namespace ringcore::fuzz
