#include "aggregation/socket.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/error.hpp"

namespace ringcore::aggregation {
namespace {

constexpr std::size_t kAtOnce = 64;
// Bursts of all workers, while the receiver does not run.
constexpr int kBufferBytes = 8 << 20;

static_assert(sizeof(sockaddr_in6) <= sizeof(Address::bytes));

sockaddr* sockaddr_of(Address& address) { return reinterpret_cast<sockaddr*>(address.bytes.data()); }

int family_of(const Address& address) {
  sockaddr head{};
  std::memcpy(&head, address.bytes.data(), std::min<std::size_t>(sizeof(head), address.size));
  return head.sa_family;
}

}  // namespace

Address resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  if (error != 0 || found == nullptr || found->ai_addrlen > sizeof(Address::bytes)) {
    throw Error(ErrorKind::kInvalidArgument,
                "the switch's host '" + host + "' has no address: " + (error != 0 ? ::gai_strerror(error) : "none"));
  }
  Address address;
  address.size = found->ai_addrlen;
  std::memcpy(address.bytes.data(), found->ai_addr, found->ai_addrlen);
  return address;
}

std::string describe(const Address& address) {
  Address copy = address;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int error = ::getnameinfo(sockaddr_of(copy), copy.size, host.data(), host.size(), port.data(), port.size(),
                                  NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return "an unknown address";
  const std::string name = host.data();
  return (name.find(':') == std::string::npos ? name : "[" + name + "]") + ":" + port.data();
}

Socket::Socket(const Address& of)
    : fd_(::socket(family_of(of), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      level_(family_of(of) == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP),
      option_(family_of(of) == AF_INET6 ? IPV6_TCLASS : IP_TOS) {
  if (!fd_) throw Error(ErrorKind::kResource, with_errno("cannot create a UDP socket", errno));
  // Beyond the system's limit only where this process may.
  for (const auto& [forced, usual] : {std::pair{SO_RCVBUFFORCE, SO_RCVBUF}, std::pair{SO_SNDBUFFORCE, SO_SNDBUF}}) {
    if (::setsockopt(fd_.get(), SOL_SOCKET, forced, &kBufferBytes, sizeof(kBufferBytes)) != 0) {
      ::setsockopt(fd_.get(), SOL_SOCKET, usual, &kBufferBytes, sizeof(kBufferBytes));
    }
  }
}

Socket Socket::bound_to(const Address& address) {
  Socket socket(address);
  Address copy = address;
  if (::bind(socket.fd(), sockaddr_of(copy), copy.size) != 0) {
    throw Error(ErrorKind::kResource, with_errno("a switch cannot listen at " + describe(address), errno));
  }
  return socket;
}

Socket Socket::connected_to(const Address& peer) {
  Socket socket(peer);
  Address copy = peer;
  if (::connect(socket.fd(), sockaddr_of(copy), copy.size) != 0) {
    throw Error(ErrorKind::kResource, with_errno("there is no way to the switch " + describe(peer), errno));
  }
  return socket;
}

Address Socket::address() const {
  Address own;
  socklen_t size = sizeof(own.bytes);
  ::getsockname(fd_.get(), sockaddr_of(own), &size);
  own.size = size;
  return own;
}

std::size_t Socket::receive(const Visit& visit) {
  // One byte more than the largest packet: longer ones show.
  using Room = std::array<std::array<std::byte, kMostPacket + 1>, kAtOnce>;
  static thread_local const std::unique_ptr<Room> room = std::make_unique<Room>();
  std::array<mmsghdr, kAtOnce> messages{};
  std::array<iovec, kAtOnce> pieces{};
  std::array<Address, kAtOnce> from;
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    pieces[i] = {(*room)[i].data(), (*room)[i].size()};
    messages[i].msg_hdr.msg_name = from[i].bytes.data();
    messages[i].msg_hdr.msg_namelen = sizeof(from[i].bytes);
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  // What the network says of packets that were sent, as that nobody listens, is no more than a loss.
  const int count = ::recvmmsg(fd_.get(), messages.data(), kAtOnce, MSG_DONTWAIT, nullptr);
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    from[at].size = messages[at].msg_hdr.msg_namelen;
    visit(std::span((*room)[at]).first(messages[at].msg_len), from[at]);
  }
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

std::size_t Socket::send(const Outbox& out, std::size_t first) {
  std::array<mmsghdr, kAtOnce> messages{};
  std::array<iovec, kAtOnce> pieces{};
  std::array<Address, kAtOnce> to;
  struct alignas(cmsghdr) Service {
    std::array<std::byte, CMSG_SPACE(sizeof(int))> bytes{};
  };
  std::array<Service, kAtOnce> services{};
  const auto items = out.items();
  while (first < items.size()) {
    const std::size_t count = std::min(kAtOnce, items.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const Outbox::Item& item = items[first + i];
      const auto bytes = out.bytes(item);
      pieces[i] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
      to[i] = item.to;
      msghdr& head = messages[i].msg_hdr;
      head = {};
      head.msg_name = to[i].bytes.data();
      head.msg_namelen = to[i].size;
      head.msg_iov = &pieces[i];
      head.msg_iovlen = 1;
      head.msg_control = services[i].bytes.data();
      head.msg_controllen = services[i].bytes.size();
      cmsghdr* const service = CMSG_FIRSTHDR(&head);
      service->cmsg_level = level_;
      service->cmsg_type = option_;
      service->cmsg_len = CMSG_LEN(sizeof(int));
      const int value = item.control ? kControlService : kDataService;
      std::memcpy(CMSG_DATA(service), &value, sizeof(value));
    }
    const int sent = ::sendmmsg(fd_.get(), messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      first += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
      return first;
    } else {
      ++first;  // this one is lost
    }
  }
  return first;
}

}  // namespace ringcore::aggregation
