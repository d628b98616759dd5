// A ring of bytes in shared memory: one producer, one consumer, no locks.
//
// The ring's pages are mapped twice, one copy behind the other, so that any stretch of it is contiguous.
// Indices count bytes since the start and never wrap (64 bits: centuries). Each side trusts only the index that it
// keeps privately: what a broken peer writes into the shared page can stop a ring, but not make us leave it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/owned.hpp"

namespace ringcore::transport {

// The shared part: each index on cache lines of its own (two: processors fetch lines in pairs).
struct RingIndices {
  alignas(128) std::uint64_t tail;  // bytes produced
  alignas(128) std::uint64_t head;  // bytes consumed
};

// `bytes` of a memory file from `offset` on, mapped twice in a row. `bytes` is a power of two and whole pages.
class RingMapping {
 public:
  RingMapping() = default;
  // Throws Error{kResource}.
  RingMapping(int fd, std::size_t offset, std::size_t bytes);
  RingMapping(RingMapping&& other) noexcept;
  RingMapping& operator=(RingMapping&& other) noexcept;
  ~RingMapping();
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(RingIndices& shared, std::byte* data, std::size_t capacity);

  // Copies from the front of `bytes`; returns how many fitted.
  std::size_t write(std::span<const std::byte> bytes);
  // Whether the last write came short and there is still no room.
  bool blocked();
  // The consumer's index makes no sense: nothing can be written any more.
  bool corrupt() const { return corrupt_; }
  std::uint64_t produced() const { return tail_; }

 private:
  std::size_t room();
  std::size_t known_room() const { return capacity_ - static_cast<std::size_t>(tail_ - head_); }

  RingIndices* shared_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // the last that was seen
  bool short_ = false;
  bool corrupt_ = false;
};

class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(RingIndices& shared, const std::byte* data, std::size_t capacity);

  // All that has arrived. Valid until `consume`.
  std::span<const std::byte> peek();
  void consume(std::size_t bytes);
  std::size_t read(std::span<std::byte> out);
  // Whether something arrived that neither `peek` nor this function has seen yet.
  bool arrived();
  // The producer's index makes no sense: what it wrote after that cannot be read.
  bool corrupt() const { return corrupt_; }
  std::uint64_t consumed() const { return head_; }

 private:
  std::size_t available();

  RingIndices* shared_ = nullptr;
  const std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  // the last that was seen
  bool corrupt_ = false;
};

}  // namespace ringcore::transport
