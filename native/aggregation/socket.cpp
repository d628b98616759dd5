#include "aggregation/socket.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include "base/error.hpp"

namespace ringcore::aggregation {
namespace {

// Of Linux; older headers lack them.
constexpr int kUdpSegment = 103;
constexpr int kUdpGro = 104;
constexpr std::size_t kMostDatagram = 65535;
// So many packets at most as one: a queue that limits a rate lets some 32 KiB pass at once, and who waits for the last of
// them should not wait for long.
constexpr std::size_t kMostJoined = 16;
// Bursts of all workers, while the receiver does not run.
constexpr int kBufferBytes = 8 << 20;

static_assert(sizeof(sockaddr_in6) <= sizeof(Address::bytes));

sockaddr* sockaddr_of(Address& address) { return reinterpret_cast<sockaddr*>(address.bytes.data()); }

int family_of(const Address& address) {
  sockaddr head{};
  std::memcpy(&head, address.bytes.data(), std::min<std::size_t>(sizeof(head), address.size));
  return head.sa_family;
}

// What goes beside a message.
template <typename Value>
struct alignas(cmsghdr) Control {
  std::array<std::byte, CMSG_SPACE(sizeof(Value))> bytes{};

  void set(int level, int type, Value value) {
    const cmsghdr head{.cmsg_len = CMSG_LEN(sizeof(Value)), .cmsg_level = level, .cmsg_type = type};
    std::memcpy(bytes.data(), &head, sizeof(head));
    std::memcpy(bytes.data() + CMSG_LEN(0), &value, sizeof(value));
  }
};

// Of each packet but the last, of which a message was put together.
std::size_t packet_size(msghdr& message, std::size_t bytes) {
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_UDP || at->cmsg_type != kUdpGro) continue;
    int size = 0;
    std::memcpy(&size, CMSG_DATA(at), sizeof(size));
    if (size > 0) return static_cast<std::size_t>(size);
  }
  return bytes;
}

// How many of these the kernel takes as one: those to one address that are as long as the first, but for the last.
std::size_t joined_from(std::span<const Outbox::Item> items) {
  const Outbox::Item& first = items.front();
  std::size_t count = 1;
  while (count < std::min(items.size(), kMostJoined) && items[count - 1].bytes == first.bytes &&
         items[count].bytes <= first.bytes && items[count].to == first.to && items[count].control == first.control) {
    ++count;
  }
  return count;
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
  constexpr int kByMessage = 0;
  joins_ = ::setsockopt(fd_.get(), SOL_UDP, kUdpSegment, &kByMessage, sizeof(kByMessage)) == 0;
  constexpr int kOn = 1;
  ::setsockopt(fd_.get(), SOL_UDP, kUdpGro, &kOn, sizeof(kOn));
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
  // As much as the kernel may have put together. Pages that nothing is written to are not there.
  using Room = std::array<std::array<std::byte, kMostDatagram>, kAtOnce>;
  static thread_local const std::unique_ptr<Room> room = std::make_unique_for_overwrite<Room>();
  std::array<mmsghdr, kAtOnce> messages{};
  std::array<iovec, kAtOnce> pieces{};
  std::array<Address, kAtOnce> from;
  std::array<Control<int>, kAtOnce> sizes;
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    pieces[i] = {(*room)[i].data(), (*room)[i].size()};
    messages[i].msg_hdr = {.msg_name = from[i].bytes.data(),
                           .msg_namelen = sizeof(from[i].bytes),
                           .msg_iov = &pieces[i],
                           .msg_iovlen = 1,
                           .msg_control = &sizes[i],
                           .msg_controllen = sizeof(sizes[i]),
                           .msg_flags = 0};
  }
  // What the network says of packets that were sent, as that nobody listens, is no more than a loss.
  const int count = ::recvmmsg(fd_.get(), messages.data(), kAtOnce, MSG_DONTWAIT, nullptr);
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    from[at].size = messages[at].msg_hdr.msg_namelen;
    std::span<const std::byte> rest = std::span((*room)[at]).first(messages[at].msg_len);
    const std::size_t size = packet_size(messages[at].msg_hdr, rest.size());
    do {
      const std::size_t bytes = std::min(size, rest.size());
      visit(rest.first(bytes), from[at]);
      rest = rest.subspan(bytes);
    } while (!rest.empty());
  }
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

std::size_t Socket::send(const Outbox& out, std::size_t first) {
  struct alignas(cmsghdr) Options {
    Control<int> service;
    Control<std::uint16_t> size;
  };
  std::array<mmsghdr, kAtOnce> messages{};
  std::array<std::array<iovec, kMostJoined>, kAtOnce> pieces{};
  std::array<std::size_t, kAtOnce> ends{};
  std::array<Address, kAtOnce> to;
  std::array<Options, kAtOnce> options;
  const auto items = out.items();
  while (first < items.size()) {
    std::size_t count = 0;
    for (std::size_t next = first; count < kAtOnce && next < items.size(); ++count) {
      const Outbox::Item& item = items[next];
      const std::size_t joined = joins_ ? joined_from(items.subspan(next)) : 1;
      for (std::size_t i = 0; i < joined; ++i) {
        const auto bytes = out.bytes(items[next + i]);
        pieces[count][i] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
      }
      to[count] = item.to;
      options[count].service.set(level_, option_, item.control ? kControlService : kDataService);
      options[count].size.set(SOL_UDP, kUdpSegment, static_cast<std::uint16_t>(item.bytes));
      messages[count].msg_hdr = {.msg_name = to[count].bytes.data(),
                                 .msg_namelen = to[count].size,
                                 .msg_iov = pieces[count].data(),
                                 .msg_iovlen = joined,
                                 .msg_control = &options[count],
                                 .msg_controllen = joined > 1 ? sizeof(Options) : sizeof(options[count].service),
                                 .msg_flags = 0};
      next += joined;
      ends[count] = next;
    }
    const int sent = ::sendmmsg(fd_.get(), messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      first = ends[static_cast<std::size_t>(sent) - 1];
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
      return first;
    } else if (messages[0].msg_hdr.msg_iovlen > 1 && (errno == EINVAL || errno == EIO || errno == EMSGSIZE)) {
      joins_ = false;  // this way takes them one by one: as one that is encrypted, or splits them
    } else {
      first = ends[0];  // lost
    }
  }
  return first;
}

}  // namespace ringcore::aggregation
