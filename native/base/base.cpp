// Errors, clock and owners of handles.
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/owned.hpp"

namespace ringcore {

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "InvalidArgument";
    case ErrorKind::kMismatch: return "MismatchError";
    case ErrorKind::kDuplicateName: return "DuplicateNameError";
    case ErrorKind::kDeadlock: return "DeadlockError";
    case ErrorKind::kTimeout: return "TimeoutError";
    case ErrorKind::kPeerLost: return "PeerLostError";
    case ErrorKind::kProtocol: return "ProtocolError";
    case ErrorKind::kResource: return "ResourceError";
    case ErrorKind::kShutdown: return "ShutdownError";
    case ErrorKind::kMembershipChanged: return "MembershipChangedError";
    case ErrorKind::kEvicted: return "EvictedError";
  }
  __builtin_unreachable();
}

std::string with_errno(const std::string& message, int error_number) {
  return message + ": " + std::strerror(error_number) + " (errno " + std::to_string(error_number) + ")";
}

Nanoseconds SteadyClock::now() const {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Nanoseconds>(time.tv_sec) * kSecond + time.tv_nsec;
}

std::string in_seconds(Nanoseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g s", static_cast<double>(time) / static_cast<double>(kSecond));
  return text.data();
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Mapping::Mapping(int fd, std::size_t offset, std::size_t bytes) : size_(bytes) {
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) {
    throw Error(ErrorKind::kResource, with_errno("cannot map " + std::to_string(bytes) + " bytes", errno));
  }
  data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace ringcore
