#include "plan/layout.hpp"

#include <algorithm>

namespace ringcore::plan {

void Layout::append(std::size_t count, std::uint32_t chunks, std::size_t alignment) {
  // Aligning makes chunks differ by up to so many elements; small ones are better divided evenly.
  const std::size_t unit = count >= chunks * alignment * 4 ? alignment : 1;
  const std::size_t units = (count + unit - 1) / unit;
  const std::size_t begin = offsets_.back();
  for (std::uint32_t i = 1; i <= chunks; ++i) {
    const std::size_t share = units / chunks * i + std::min<std::size_t>(i, units % chunks);
    offsets_.push_back(begin + std::min(share * unit, count));
  }
}

Layout Layout::even(std::size_t count, std::uint32_t chunks, std::size_t alignment) {
  Layout layout;
  layout.append(count, chunks, alignment);
  return layout;
}

Layout Layout::blocks(std::span<const std::uint64_t> sizes, int parts) {
  Layout layout;
  for (const std::uint64_t size : sizes) layout.append(size, static_cast<std::uint32_t>(parts), kAlignment);
  return layout;
}

std::size_t Layout::largest() const {
  std::size_t largest = 0;
  for (std::size_t i = 1; i < offsets_.size(); ++i) largest = std::max(largest, offsets_[i] - offsets_[i - 1]);
  return largest;
}

}  // namespace ringcore::plan
