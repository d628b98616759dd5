// Where the chunks of a buffer lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ringcore::plan {

class Layout {
 public:
  Layout() = default;
  // Two ranks never write to one cache line where borders lie on multiples of so many elements.
  static constexpr std::size_t kAlignment = 64;
  // `chunks` chunks of nearly equal size. Borders of large chunks lie on multiples of `alignment` elements.
  static Layout even(std::size_t count, std::uint32_t chunks, std::size_t alignment = kAlignment);
  // Consecutive blocks of the given elements, each divided into `parts` chunks.
  static Layout blocks(std::span<const std::uint64_t> sizes, int parts);

  std::size_t offset(std::uint32_t chunk) const { return offsets_[chunk]; }  // elements
  std::size_t size(std::uint32_t chunk) const { return offsets_[chunk + 1] - offsets_[chunk]; }
  std::size_t largest() const;

 private:
  void append(std::size_t count, std::uint32_t chunks, std::size_t alignment);
  std::vector<std::size_t> offsets_{0};
};

}  // namespace ringcore::plan
