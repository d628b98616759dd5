// Bytes that wait between two calls: at one end they are added, at the other they are taken.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace ringcore::transport {

// Has memory only while bytes wait in it: few connections have some at a time, and what was ever used keeps none. The
// memory of an empty one goes on to the next of this thread that needs some.
class Buffer {
 public:
  static constexpr std::size_t kBytes = 136 * 1024;

  std::size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  std::span<std::byte> bytes() { return {memory_.get() + begin_, size()}; }
  std::span<const std::byte> bytes() const { return {memory_.get() + begin_, size()}; }
  // The free end, where the next bytes go. Moves the rest to the front when that makes more room.
  std::span<std::byte> room();
  // So many bytes were written there; with none, memory that is not needed is given back.
  void add(std::size_t bytes);
  // So many bytes at the front are no longer needed.
  void drop(std::size_t bytes);

 private:
  void give_memory_back();

  std::unique_ptr<std::byte[]> memory_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace ringcore::transport
