#include "transport/tcp/kernel_tls.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/error.hpp"
#include "base/owned.hpp"

namespace ringcore::transport::kernel_tls {
namespace {

// Of <linux/tls.h>, which the headers that wheels are built with may be too old for.
constexpr int kTcpUlp = 31;  // TCP_ULP
constexpr int kSolTls = 282;  // SOL_TLS
constexpr int kTx = 1;  // TLS_TX
constexpr int kSetRecordType = 1;  // TLS_SET_RECORD_TYPE
constexpr std::uint16_t kTls13 = 0x0304;  // TLS_1_3_VERSION

// struct tls12_crypto_info_aes_gcm_128
struct Aes128Gcm {
  std::uint16_t version = kTls13;
  std::uint16_t cipher = 51;  // TLS_CIPHER_AES_GCM_128
  std::byte nonce_end[8];
  std::byte key[16];
  std::byte nonce_begin[4];
  std::byte number[8];
};
static_assert(sizeof(Aes128Gcm) == 40);

// struct tls12_crypto_info_chacha20_poly1305
struct ChaCha20Poly1305 {
  std::uint16_t version = kTls13;
  std::uint16_t cipher = 54;  // TLS_CIPHER_CHACHA20_POLY1305
  std::byte nonce[12];
  std::byte key[32];
  std::byte number[8];
};
static_assert(sizeof(ChaCha20Poly1305) == 56);

void put_number(std::uint64_t number, std::byte (&out)[8]) {
  for (std::size_t i = 0; i < sizeof(out); ++i) out[i] = static_cast<std::byte>(number >> 8 * (sizeof(out) - 1 - i));
}

template <class Info>
bool set_key(int fd, Info& info) {
  const bool well = ::setsockopt(fd, kSolTls, kTx, &info, sizeof(info)) == 0;
  const int reason = errno;
  ::explicit_bzero(&info, sizeof(info));
  errno = reason;
  return well;
}

// errno says why not.
bool give_key(int fd, const RecordKey& key, std::uint64_t number) {
  if (key.suite == RecordKey::Suite::kAes128Gcm) {
    Aes128Gcm info;
    std::copy_n(key.nonce.begin(), sizeof(info.nonce_begin), info.nonce_begin);
    std::copy_n(key.nonce.begin() + sizeof(info.nonce_begin), sizeof(info.nonce_end), info.nonce_end);
    std::copy_n(key.key.begin(), sizeof(info.key), info.key);
    put_number(number, info.number);
    return set_key(fd, info);
  }
  ChaCha20Poly1305 info;
  std::copy_n(key.nonce.begin(), sizeof(info.nonce), info.nonce);
  std::copy_n(key.key.begin(), sizeof(info.key), info.key);
  put_number(number, info.number);
  return set_key(fd, info);
}

bool begin(int fd) {
  constexpr char kName[] = "tls";
  return ::setsockopt(fd, IPPROTO_TCP, kTcpUlp, kName, sizeof(kName) - 1) == 0 || errno == EEXIST;
}

// A socket that is connected, to nobody who would read.
Fd connected(Fd& listener) {
  listener = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener || !made) return {};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool well = ::bind(listener.get(), generic, length) == 0 && ::listen(listener.get(), 1) == 0 &&
                    ::getsockname(listener.get(), generic, &length) == 0 && ::connect(made.get(), generic, length) == 0;
  return well ? std::move(made) : Fd();
}

std::string ask() {
  Fd listener;
  const Fd socket = connected(listener);
  if (!socket) return with_errno("there is no loopback to ask it over", errno);
  if (!begin(socket.get())) {
    const int reason = errno;
    return with_errno("the kernel has no TLS", reason) +
           (reason == ENOENT ? "; where it is a module: modprobe tls" : "");
  }
  RecordKey key;
  if (!give_key(socket.get(), key, 0)) return with_errno("the kernel refuses TLS 1.3 with AES-128-GCM", errno);
  if (!give_key(socket.get(), key, 0)) {
    return with_errno("the kernel cannot change the key of a connection, which Linux 6.14 and newer can", errno);
  }
  return {};
}

std::atomic<bool>& wanted() {
  static std::atomic<bool> is_wanted{false};
  return is_wanted;
}

}  // namespace

void use(bool is_wanted) { wanted() = is_wanted; }

bool is_used() { return wanted() && refusal().empty(); }

const std::string& refusal() {
  static const std::string reason = ask();
  return reason;
}

bool encrypt(int fd, const RecordKey& key, std::uint64_t number) {
  return is_used() && begin(fd) && give_key(fd, key, number);
}

std::ptrdiff_t send_message(int fd, std::byte type, std::span<const std::byte> text) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(type))> control{};
  iovec piece{const_cast<std::byte*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const told = CMSG_FIRSTHDR(&message);
  told->cmsg_level = kSolTls;
  told->cmsg_type = kSetRecordType;
  told->cmsg_len = CMSG_LEN(sizeof(type));
  std::memcpy(CMSG_DATA(told), &type, sizeof(type));
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace ringcore::transport::kernel_tls
