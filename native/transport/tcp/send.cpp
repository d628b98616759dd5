#include "transport/tcp/send.hpp"

#include <array>

#include <sys/socket.h>
#include <sys/uio.h>

namespace ringcore::transport {

std::ptrdiff_t send_pieces(int fd, std::span<const std::byte> first, std::span<const std::byte> rest) {
  std::array<iovec, 2> pieces{
      {{const_cast<std::byte*>(first.data()), first.size()}, {const_cast<std::byte*>(rest.data()), rest.size()}}};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace ringcore::transport
