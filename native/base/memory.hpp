// Memory that is used again.
#pragma once

#include <cstddef>
#include <utility>

namespace ringcore {

// Uninitialised memory: of results whose size only the negotiation tells, and of what a run needs besides. Large pieces
// are kept when they come back, for the next one of about their size: to make the pages of fresh memory exist takes
// several times as long as to gather into it. What is kept and what is in use are together never more than was once in
// use at the same time, and no more than kMostKept is kept. Thread-safe, also in a process that was forked meanwhile.
class Memory {
 public:
  static constexpr std::size_t kAlignment = 64;  // what frameworks ask of memory that they take over
  static constexpr std::size_t kMostKept = std::size_t{512} << 20;

  Memory() = default;
  explicit Memory(std::size_t bytes);
  ~Memory() { reset(); }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Gives back to the system what is kept.
  static void trim();
  static std::size_t kept_bytes();

 private:
  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(block_bytes_, other.block_bytes_);
  }
  void reset() noexcept;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t block_bytes_ = 0;  // of what was allocated: at least `size_`
};

}  // namespace ringcore
