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
  // `chunks` chunks of nearly equal size. Borders of large chunks lie on multiples of 64 elements, so that two ranks
  // never write to one cache line.
  static Layout even(std::size_t count, std::uint32_t chunks);
  // Consecutive blocks of the given elements, each divided into `parts` chunks.
  static Layout blocks(std::span<const std::uint64_t> sizes, int parts);

  std::size_t offset(std::uint32_t chunk) const { return offsets_[chunk]; }  // elements
  std::size_t size(std::uint32_t chunk) const { return offsets_[chunk + 1] - offsets_[chunk]; }
  std::size_t largest() const;

 private:
  void append(std::size_t count, std::uint32_t chunks);
  std::vector<std::size_t> offsets_{0};
};

}  // namespace ringcore::plan
