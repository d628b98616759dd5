#include "base/memory.hpp"

#include <algorithm>
#include <list>
#include <mutex>
#include <new>

namespace ringcore {
namespace {

// Of smaller pieces the allocator of the process keeps enough.
constexpr std::size_t kMinKept = 64 * 1024;

// Peers say how large a result is: that there is no memory for it is an error like others, also for sanitizers, which end
// the process where the operator that throws finds none.
std::byte* allocate(std::size_t bytes) {
  void* const block = ::operator new(bytes, std::align_val_t{Memory::kAlignment}, std::nothrow);
  if (block == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(block);
}

void release(std::byte* block) { ::operator delete(block, std::align_val_t{Memory::kAlignment}); }

// The large blocks that nobody uses at the moment. Who cannot have the lock at once does without: in a forked child it
// may be held for ever by a thread that is not there.
class Store {
 public:
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  // One of at least so many bytes, and not many more; none where none is kept.
  Block take(std::size_t bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return {};
    // The last one that came back is the likeliest to be in a cache.
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(), [bytes](const Block& block) {
      return block.bytes >= bytes && block.bytes - bytes <= bytes / 4;
    });
    Block block;
    if (found != kept_.rend()) {
      block = *found;
      kept_.erase(std::next(found).base());
      kept_bytes_ -= block.bytes;
    }
    used_bytes_ += block.data == nullptr ? bytes : block.bytes;
    most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
    return block;
  }

  void give_back(Block block) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return release(block.data);
    used_bytes_ -= std::min(used_bytes_, block.bytes);
    try {
      kept_.push_back(block);
    } catch (const std::bad_alloc&) {
      return release(block.data);
    }
    kept_bytes_ += block.bytes;
    while (kept_bytes_ > Memory::kMostKept || used_bytes_ + kept_bytes_ > most_used_bytes_) drop_oldest();
  }

  void trim() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    while (lock && !kept_.empty()) drop_oldest();
    if (lock) most_used_bytes_ = used_bytes_;
  }

  std::size_t kept_bytes() {
    const std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

 private:
  void drop_oldest() {
    kept_bytes_ -= kept_.front().bytes;
    release(kept_.front().data);
    kept_.pop_front();
  }

  std::mutex mutex_;       // Guards: everything below.
  std::list<Block> kept_;  // in the order in which they came back
  std::size_t kept_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t most_used_bytes_ = 0;
};

// Never destroyed: results live as long as the objects of a framework, to the end of the process.
Store& store() {
  static auto& only = *new Store;
  return only;
}

}  // namespace

Memory::Memory(std::size_t bytes) : size_(bytes), block_bytes_(bytes) {
  if (bytes >= kMinKept) {
    const Store::Block block = store().take(bytes);
    if (block.data != nullptr) {
      data_ = block.data;
      block_bytes_ = block.bytes;
      return;
    }
  }
  data_ = allocate(bytes);
}

void Memory::reset() noexcept {
  if (data_ == nullptr) return;
  if (block_bytes_ >= kMinKept) {
    store().give_back({data_, block_bytes_});
  } else {
    release(data_);
  }
  data_ = nullptr;
}

void Memory::trim() { store().trim(); }

std::size_t Memory::kept_bytes() { return store().kept_bytes(); }

}  // namespace ringcore
