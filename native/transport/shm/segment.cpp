#include "transport/shm/segment.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

constexpr std::uint64_t kMagic = 0x31656e6967'63722e;  // any constant that other memory files do not start with
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::uint64_t kSmallestArenaBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargestArenaBytes = std::uint64_t{1} << 40;  // 100 ranks of a host must fit in 47 bits
// Of what a limit of address space leaves, the others' arenas and the program itself need most.
constexpr std::uint64_t kArenasPerAddressSpace = 8;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t size;
  std::uint32_t reserved;
  std::uint64_t arena_offset;
  std::uint64_t file_bytes;
};

std::size_t round_up(std::size_t bytes, std::size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

std::size_t arena_offset_for(int size) {
  return round_up(page_bytes() + static_cast<std::size_t>(size + kPlacesToCome) * InboxLayout(size).bytes(),
                  kHugePageBytes);
}

std::string megabytes(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Growing a file past RLIMIT_FSIZE would kill the process with SIGXFSZ.
std::uint64_t largest_file_bytes() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// Never executable where the kernel knows that (6.3); some systems refuse other memory files (vm.memfd_noexec = 2).
Fd create_memory_file() {
  constexpr unsigned kNoExecSeal = 0x0008;  // MFD_NOEXEC_SEAL, which older headers lack
  Fd fd(::memfd_create("ringcore", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal));
  return fd ? std::move(fd) : Fd(::memfd_create("ringcore", MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

// Creates and seals a memory file. Nothing when the system refuses the size; errno says why.
Fd create_file(std::size_t bytes) {
  if (bytes > largest_file_bytes()) {
    errno = EFBIG;
    return Fd();
  }
  Fd fd = create_memory_file();
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return Fd();
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return Fd();
  return fd;
}

// What the kernel believes can be had without swapping or killing somebody; shmem itself has no such limit: when
// memory is short, filling a memory file wakes the out-of-memory killer where malloc would.
std::uint64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  while (meminfo >> word) {
    std::uint64_t kilobytes = 0;
    if (word == "MemAvailable:" && meminfo >> kilobytes) return kilobytes << 10;
  }
  return UINT64_MAX;
}

// What the limit of address space (ulimit -v) leaves.
std::uint64_t free_address_bytes() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  std::uint64_t used_pages = 0;
  std::ifstream("/proc/self/statm") >> used_pages;
  const std::uint64_t used = used_pages * page_bytes();
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

[[noreturn]] void refuse(Rank rank, const std::string& seen) {
  throw Error(ErrorKind::kProtocol,
              "the memory that rank " + std::to_string(rank) + " shares is not a segment of this job: " + seen);
}

}  // namespace

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

InboxLayout::InboxLayout(int size) {
  constexpr std::size_t kDataBytes = std::size_t{512} << 10;
  constexpr std::size_t kFewestBytes = std::bit_ceil(Link::kMaxContiguous);
  const std::size_t ranks = std::bit_ceil(static_cast<std::size_t>(std::max(size, 1)));
  data_bytes_ = std::clamp(kDataBytes * 16 / ranks, kFewestBytes, kDataBytes);
  control_bytes_ = std::max(data_bytes_ / 2, kFewestBytes);
  bytes_ = page_bytes() + control_bytes_ + static_cast<std::size_t>(kLaneCount - 1) * data_bytes_;
}

std::uint64_t Segment::default_arena_bytes() {
  const auto physical = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes();
  return std::clamp(std::min(physical, free_address_bytes() / kArenasPerAddressSpace), kSmallestArenaBytes,
                    kLargestArenaBytes);
}

Segment Segment::create(Rank rank, int size, std::uint64_t arena_bytes) {
  if (size < 1 || rank < 0 || rank >= size + kPlacesToCome) {
    throw Error(ErrorKind::kInvalidArgument,
                "rank " + std::to_string(rank) + " of " + std::to_string(size) + " cannot have a segment");
  }
  const std::size_t arena_offset = arena_offset_for(size);
  for (std::uint64_t wanted = round_up(arena_bytes, page_bytes());; wanted = round_up(wanted / 2, page_bytes())) {
    try {
      const std::size_t file_bytes = arena_offset + wanted;
      Fd fd = create_file(file_bytes);
      if (!fd) {
        throw Error(ErrorKind::kResource, with_errno("cannot create a memory file of " + megabytes(file_bytes), errno));
      }
      const Header header{kMagic, kVersion, rank, size, 0, arena_offset, file_bytes};
      if (::pwrite(fd.get(), &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) {
        throw Error(ErrorKind::kResource, with_errno("no shared memory for the segment's header", errno));
      }
      Segment segment(std::move(fd), rank, size, arena_offset, wanted);
      segment.map_arena();
      return segment;
    } catch (const Error&) {
      if (wanted <= kSmallestArenaBytes) throw;
    }
  }
}

Segment Segment::attach(Fd fd, Rank rank, int size) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) refuse(rank, with_errno("it cannot be examined", errno));
  if ((::fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals) refuse(rank, "its size is not sealed");
  const auto file_bytes = static_cast<std::size_t>(status.st_size);
  if (file_bytes < arena_offset_for(size)) refuse(rank, "it has only " + std::to_string(file_bytes) + " bytes");

  Header header{};
  if (::pread(fd.get(), &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) {
    refuse(rank, with_errno("its header cannot be read", errno));
  }
  if (header.magic != kMagic) refuse(rank, "it does not begin like one");
  if (header.version != kVersion) {
    refuse(rank, "it has layout version " + std::to_string(header.version) + ", ours is " + std::to_string(kVersion) +
                     "; install the same ringcore for all ranks");
  }
  if (header.rank != rank || header.size != size) {
    refuse(rank, "it belongs to rank " + std::to_string(header.rank) + " of " + std::to_string(header.size));
  }
  if (header.file_bytes != file_bytes || header.arena_offset != arena_offset_for(size)) {
    refuse(rank, "its header says other sizes than it has");
  }
  return {std::move(fd), rank, size, header.arena_offset, file_bytes - header.arena_offset};
}

std::size_t Segment::inbox_offset(Rank sender) const {
  if (sender < 0 || sender >= size_ + kPlacesToCome) {
    throw Error(ErrorKind::kInvalidArgument, "rank " + std::to_string(sender) + " has no inbox in a segment for " +
                                                 std::to_string(size_) + " ranks and " + std::to_string(kPlacesToCome) +
                                                 " to come");
  }
  return page_bytes() + static_cast<std::size_t>(sender) * InboxLayout(size_).bytes();
}

Mapping Segment::map_inbox_page(Rank sender) const { return {fd_.get(), inbox_offset(sender), page_bytes()}; }

void Segment::reserve_inbox(Rank sender) const {
  reserve_pages(fd_.get(), inbox_offset(sender), InboxLayout(size_).bytes(), "a link's lanes");
}

void Segment::map_arena() {
  try {
    arena_ = Mapping(fd_.get(), arena_offset_, arena_bytes_);
  } catch (const Error& error) {
    throw Error(ErrorKind::kResource, "no address space for registered memory: " + std::string(error.what()) +
                                          std::string(kAddressSpaceRemedy));
  }
}

void reserve_pages(int fd, std::size_t offset, std::size_t bytes, const char* purpose) {
  // In pieces: a signal makes fallocate undo what it did and fail with EINTR; a large one might never get through.
  constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
  const auto fail = [&](int error_number) {
    throw Error(ErrorKind::kResource,
                with_errno("no shared memory for " + std::to_string(bytes) + " bytes of " + purpose, error_number) +
                    "; free memory or use smaller buffers");
  };
  // The kernel's own check comes too late for what would use up the rest of the machine.
  if (bytes >= kPieceBytes && bytes > available_memory_bytes()) fail(ENOMEM);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(kPieceBytes, bytes - done);
    if (::fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(piece)) == 0) {
      done += piece;
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

}  // namespace ringcore::transport
