// Registered memory that is used again.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "transport/shm/segment.hpp"

namespace ringcore::transport {

// Hands out pieces of an arena and keeps those that come back for the next request of their size: to make the pages of a
// piece exist takes longer than to reduce it. Used and kept pieces together are never more than were once in use at the
// same time; those that came back first go first. Thread-safe.
class Pool {
 public:
  // `arena` must outlive the pool, and the pool its pieces.
  explicit Pool(Arena& arena) : arena_(arena) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Throws Error{kResource}.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* piece);

 private:
  struct Kept {
    std::size_t bytes;
    std::byte* piece;
  };
  using KeptList = std::list<Kept>;

  std::byte* take_kept(std::size_t bytes);
  void make_room(std::size_t bytes);

  Arena& arena_;
  std::mutex mutex_;  // Guards: everything below. Before the arena's.
  std::map<std::byte*, std::size_t> used_;
  KeptList kept_;  // in the order in which they came back
  std::multimap<std::size_t, KeptList::iterator> kept_by_bytes_;
  std::size_t used_bytes_ = 0;
  std::size_t kept_bytes_ = 0;
  std::size_t most_used_bytes_ = 0;
};

}  // namespace ringcore::transport
