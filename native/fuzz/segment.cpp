// The memory file that a rank of this host shares: any header, any size, sealed or not.
#include "transport/shm/segment.hpp"

#include <algorithm>
#include <array>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "transport/shm/arena_view.hpp"

namespace ringcore::fuzz {

void segment(Bytes input) {
  constexpr int kRanks = 2;
  constexpr std::size_t kHeaderBytes = 40;
  Input bytes(input);
  static const transport::Segment valid = transport::Segment::create(1, kRanks, 64 << 20);
  const auto file_bytes = static_cast<off_t>(valid.arena_offset() + valid.arena_bytes());
  const auto missing = static_cast<off_t>(bytes.below(3) == 0 ? bytes.take<std::uint32_t>() : 0);
  Fd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(fd && ::ftruncate(fd.get(), std::max<off_t>(0, file_bytes - missing)) == 0, "there are memory files");
  if (bytes.below(8) > 0) ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  // What the valid one begins with, some of its bytes changed.
  std::array<std::byte, kHeaderBytes> header;
  require(::pread(valid.fd(), header.data(), header.size(), 0) == kHeaderBytes, "the valid header can be read");
  for (std::size_t changes = bytes.below(4); changes > 0; --changes) {
    header[bytes.below(kHeaderBytes)] = bytes.take<std::byte>();
  }
  [[maybe_unused]] const auto written = ::pwrite(fd.get(), header.data(), header.size(), 0);
  try {
    const auto attached = std::make_shared<transport::Segment>(transport::Segment::attach(std::move(fd), 1, kRanks));
    require(attached->arena_bytes() == valid.arena_bytes(), "an arena lies in its file");
    transport::ArenaView view(attached);
    const auto offset = bytes.take<std::uint64_t>() >> bytes.below(64);
    const auto length = bytes.take<std::uint64_t>() >> bytes.below(64);
    if (length > 0) require(*view.at(offset, length) == std::byte{0}, "the peer's memory can be read");
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kProtocol || error.kind() == ErrorKind::kResource,
            "it is refused as what it is");
  }
}

}  // namespace ringcore::fuzz
