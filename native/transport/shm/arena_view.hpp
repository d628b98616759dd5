// A peer's arena as this rank sees it: what is used of it is mapped, when it is first used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "transport/shm/segment.hpp"

namespace ringcore::transport {

// Maps windows of the arena. Addresses stay valid as long as the view. A window is twice as large as what must lie in one
// piece in it, and begins at a multiple of that: windows of one size are together at most about twice as large as what
// is used, and there are few sizes.
class ArenaView {
 public:
  explicit ArenaView(std::shared_ptr<const Segment> segment) : segment_(std::move(segment)) {}

  // Throws Error{kProtocol} for what lies outside of the arena, Error{kResource} where there is no address space.
  std::byte* at(std::uint64_t offset, std::size_t bytes);

 private:
  std::shared_ptr<const Segment> segment_;
  std::map<std::pair<std::size_t, std::size_t>, Mapping> windows_;  // by half of a window's size, and the place of that
};

}  // namespace ringcore::transport
