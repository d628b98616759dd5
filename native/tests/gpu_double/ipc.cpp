#include "ipc.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "capture.hpp"
#include "double.hpp"
#include "memory.hpp"

namespace gpu_double {
namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kNotSupported = 801;

enum Allowed : int { kNowhere = 0, kInOtherProcesses = 1, kEverywhere = 2 };

// Who has which piece open; behind the pieces, in the same file.
struct Ledger {
  struct Entry {
    std::atomic<std::uint64_t> place;   // 1 + its offset; 0: free
    std::atomic<std::uint32_t> serial;  // of the handle
    std::array<std::atomic<int>, 27> openers;  // process ids; 0: nobody
  };
  std::array<Entry, 30> entries;
};
static_assert(sizeof(Ledger) <= kPageBytes);

struct Handle {
  std::int32_t process;
  std::int32_t file;
  std::uint32_t entry;
  std::uint32_t serial;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::array<char, 32> unused;
};
static_assert(sizeof(Handle) == 64);

// What this process has opened.
struct Opened {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::size_t bytes = 0;
  std::atomic<int>* opener = nullptr;
  Ledger* ledger = nullptr;
};

std::mutex mutex;  // Guards: opened(), and the making of entries.

std::map<std::uint64_t, Opened>& opened() {
  static auto& by_address = *new std::map<std::uint64_t, Opened>;
  return by_address;
}

template <class T = std::byte>
T* map_file(int file, std::size_t offset, std::size_t bytes, int protection) {
  void* mapped = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? nullptr : static_cast<T*>(mapped);
}

Ledger& own_ledger() {
  static Ledger& ledger = *map_file<Ledger>(memory_file(), kMemoryBytes, kPageBytes, PROT_READ | PROT_WRITE);
  return ledger;
}

bool runs(int process) { return ::kill(process, 0) == 0 || errno == EPERM; }

Ledger::Entry* entry_of(std::size_t offset) {
  auto& entries = own_ledger().entries;
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.place == offset + 1; });
  return found == entries.end() ? nullptr : &*found;
}

std::uint32_t* word_at(std::uint64_t address) {
  if (!is_device_address(address) || address % sizeof(std::uint32_t) != 0) return nullptr;
  return reinterpret_cast<std::uint32_t*>(visible(reinterpret_cast<const void*>(address)));
}

}  // namespace

std::byte* visible_of_others(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  auto next = opened().upper_bound(address);
  if (next == opened().begin()) return nullptr;
  const Opened& before = std::prev(next)->second;
  const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(before.device);
  return offset < before.bytes ? before.host + offset : nullptr;
}

void note_release(std::size_t offset) {
  Ledger::Entry* entry = entry_of(offset);
  if (entry == nullptr) return;
  for (const std::atomic<int>& opener : entry->openers) {
    if (opener == 0 || !runs(opener)) continue;
    std::fprintf(stderr, "gpu_double: memory is freed that process %d has open\n", opener.load());
    std::abort();
  }
  entry->place = 0;
}

}  // namespace gpu_double

using namespace gpu_double;  // NOLINT

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuIpcGetMemHandle(Handle* handle, unsigned long long memory) {
  if (!has_context()) return kInvalidContext;
  const std::optional<Piece> piece = shareable_piece(memory);
  if (!piece) return kInvalidValue;
  const std::lock_guard lock(mutex);
  static std::uint32_t serials = 0;
  Ledger::Entry* entry = entry_of(piece->offset);
  if (entry == nullptr) {
    auto& entries = own_ledger().entries;
    const auto free = std::find_if(entries.begin(), entries.end(), [](const auto& each) { return each.place == 0; });
    if (free == entries.end()) return kNotSupported;
    entry = &*free;
    for (auto& opener : entry->openers) opener = 0;
    entry->serial = ++serials;
    entry->place = piece->offset + 1;
  }
  *handle = {.process = ::getpid(),
             .file = memory_file(),
             .entry = static_cast<std::uint32_t>(entry - own_ledger().entries.data()),
             .serial = entry->serial,
             .offset = piece->offset,
             .bytes = piece->bytes,
             .unused = {}};
  return kSuccess;
}

EXPORT int cuIpcOpenMemHandle_v2(unsigned long long* memory, Handle handle, unsigned flags) {
  if (!has_context()) return kInvalidContext;
  if (flags != 1) return kInvalidValue;
  const long allowed = setting("GPU_DOUBLE_IPC", kInOtherProcesses);
  if (allowed == kNowhere) return kNotSupported;
  if (handle.process == ::getpid() && allowed != kEverywhere) return kInvalidContext;
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kInvalidValue;
  Opened made;
  // Pieces begin anywhere, mappings at pages.
  const std::size_t before = handle.offset % kPageBytes;
  const std::size_t bytes = before + handle.bytes;
  made.ledger = map_file<Ledger>(file, kMemoryBytes, kPageBytes, PROT_READ | PROT_WRITE);
  made.device = map_file(file, handle.offset - before, bytes, PROT_NONE) + before;
  made.host = map_file(file, handle.offset - before, bytes, PROT_READ | PROT_WRITE) + before;
  made.bytes = handle.bytes;
  ::close(file);
  Ledger::Entry& entry = made.ledger->entries.at(handle.entry);
  if (entry.place != handle.offset + 1 || entry.serial != handle.serial) return kInvalidValue;
  for (auto& opener : entry.openers) {
    int nobody = 0;
    if (!opener.compare_exchange_strong(nobody, ::getpid())) continue;
    made.opener = &opener;
    break;
  }
  if (made.opener == nullptr) return kNotSupported;
  const std::lock_guard lock(mutex);
  *memory = reinterpret_cast<unsigned long long>(made.device);
  opened().emplace(*memory, made);
  return kSuccess;
}

EXPORT int cuIpcCloseMemHandle(unsigned long long memory) {
  if (!has_context()) return kInvalidContext;
  Opened closed;
  {
    const std::lock_guard lock(mutex);
    const auto found = opened().find(memory);
    if (found == opened().end()) return kInvalidValue;
    closed = found->second;
    opened().erase(found);
  }
  *closed.opener = 0;
  const std::size_t before = memory % kPageBytes;
  ::munmap(closed.device - before, before + closed.bytes);
  ::munmap(closed.host - before, before + closed.bytes);
  ::munmap(closed.ledger, kPageBytes);
  return kSuccess;
}

// A GPU looks at the memory again and again, and so does this.
EXPORT int cuStreamWaitValue32_v2(void* stream, unsigned long long address, std::uint32_t value, unsigned flags) {
  if (!has_context()) return kInvalidContext;
  std::uint32_t* word = word_at(address);
  if (flags != 0 || word == nullptr) return kInvalidValue;
  return give(stream, [word, value] {
    const auto behind = [&] {
      return static_cast<std::int32_t>(std::atomic_ref(*word).load(std::memory_order_acquire) - value) < 0;
    };
    for (int looks = 0; behind(); ++looks) {
      if (looks < 100) {
        std::this_thread::yield();
      } else {
        ::usleep(50);
      }
    }
  });
}

EXPORT int cuStreamWriteValue32_v2(void* stream, unsigned long long address, std::uint32_t value, unsigned flags) {
  if (!has_context()) return kInvalidContext;
  std::uint32_t* word = word_at(address);
  if (flags != 0 || word == nullptr) return kInvalidValue;
  return give(stream, [word, value] { std::atomic_ref(*word).store(value, std::memory_order_release); });
}
