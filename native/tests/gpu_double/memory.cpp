#include "memory.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include <sys/mman.h>
#include <unistd.h>

#include "double.hpp"
#include "ipc.hpp"

namespace gpu_double {
namespace {

constexpr std::size_t kBytes = kMemoryBytes;
constexpr std::size_t kAlignment = 256;  // as of CUDA
constexpr int kFreed = 0xdd;

class Arena {
 public:
  Arena() {
    fd_ = ::memfd_create("gpu_double", MFD_CLOEXEC);
    if (::ftruncate(fd_, static_cast<off_t>(kBytes + kPageBytes)) != 0) return;
    device_ = static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd_, 0));
    host_ =
        static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0));
    free_.emplace(0, kBytes);
  }

  std::uint64_t allocate(std::size_t bytes, bool in_stream) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::lock_guard lock(mutex_);
    for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
      const auto [offset, size] = *hole;
      if (size < bytes) continue;
      free_.erase(hole);
      if (size > bytes) free_.emplace(offset + bytes, size - bytes);
      used_.emplace(offset, bytes);
      if (in_stream) in_stream_.insert(offset);
      return reinterpret_cast<std::uint64_t>(device_ + offset);
    }
    return 0;
  }

  void release(std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    const std::size_t offset = address - reinterpret_cast<std::uint64_t>(device_);
    const auto found = used_.find(offset);
    if (found == used_.end()) return;
    in_stream_.erase(offset);
    note_release(offset);
    std::memset(host_ + offset, kFreed, found->second);
    auto hole = free_.emplace(offset, found->second).first;
    used_.erase(found);
    const auto next = std::next(hole);
    if (next != free_.end() && hole->first + hole->second == next->first) {
      hole->second += next->second;
      free_.erase(next);
    }
    if (hole == free_.begin()) return;
    const auto before = std::prev(hole);
    if (before->first + before->second != hole->first) return;
    before->second += hole->second;
    free_.erase(hole);
  }

  std::optional<Piece> shareable(std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(address - reinterpret_cast<std::uint64_t>(device_));
    if (found == used_.end() || in_stream_.contains(found->first)) return std::nullopt;
    return Piece{found->first, found->second};
  }

  int file() const { return fd_; }

  std::size_t allocated_bytes(std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(address - reinterpret_cast<std::uint64_t>(device_));
    return found == used_.end() ? 0 : found->second;
  }

  bool contains(std::uint64_t address) const {
    const auto begin = reinterpret_cast<std::uint64_t>(device_);
    return address >= begin && address < begin + kBytes;
  }

  std::byte* visible(std::uint64_t address) const {
    return host_ + (address - reinterpret_cast<std::uint64_t>(device_));
  }

 private:
  int fd_ = -1;  // stays open: other processes open it too
  std::byte* device_ = nullptr;
  std::byte* host_ = nullptr;
  std::mutex mutex_;  // Guards: free_, used_, in_stream_.
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes
  std::map<std::size_t, std::size_t> used_;
  std::set<std::size_t> in_stream_;
};

Arena& arena() {
  static auto& one = *new Arena;  // streams may use it until the process ends
  return one;
}

}  // namespace

std::uint64_t allocate(std::size_t bytes, bool in_stream) { return arena().allocate(bytes, in_stream); }
void release(std::uint64_t address) { arena().release(address); }
bool is_device_address(std::uint64_t address) {
  return arena().contains(address) || visible_of_others(address) != nullptr;
}
std::optional<Piece> shareable_piece(std::uint64_t address) { return arena().shareable(address); }
int memory_file() { return arena().file(); }
std::size_t allocated_bytes(std::uint64_t address) { return arena().allocated_bytes(address); }

std::byte* visible(const void* device_address) {
  const auto address = reinterpret_cast<std::uint64_t>(device_address);
  if (arena().contains(address)) return arena().visible(address);
  std::byte* shared = visible_of_others(address);
  return shared != nullptr ? shared : static_cast<std::byte*>(const_cast<void*>(device_address));
}

}  // namespace gpu_double
