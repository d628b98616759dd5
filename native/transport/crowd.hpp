// Whether the ranks of a host have a processor each. Who spins on one that another rank needs keeps it from what it
// waits for.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "transport/link.hpp"
#include "transport/standing.hpp"

namespace ringcore::transport {

// On which the process's first thread may run, which is that of the script.
Processors allowed_processors();
int count(const Processors& processors);

// How many processors' time a process may use: the least that its cgroup, or one around it, allows; nothing: as it likes.
// `hierarchy`: where version 2 is mounted; `own`: what the system says of the process's groups (/proc/self/cgroup).
std::optional<int> processor_quota(const std::filesystem::path& hierarchy, const std::filesystem::path& own);

class Crowd {
 public:
  // `ranks`: how many are on this host. `quota`: as above.
  Crowd(int ranks, std::optional<int> quota) : ranks_(ranks), quota_(quota) {}

  // The links to all other ranks, in place of those before; they stay until the next call.
  void meet(std::span<Link* const> links);
  // Counts again, as ranks may be bound to other processors at any time.
  void count_processors();
  // Says where the calling thread stands. Whether it should give its processor away while it waits: there are too few
  // of them, or another rank stands there as well.
  bool shares_processor();
  // When a peer has last rung, if that was after `since`.
  std::optional<Nanoseconds> rung_since(Nanoseconds since) const;

 private:
  struct Neighbour {
    Standing* own;
    const Standing* peer;
  };
  std::vector<Neighbour> neighbours_;
  int ranks_;
  std::optional<int> quota_;
  bool too_few_ = false;
  std::uint32_t said_ = 0;
};

}  // namespace ringcore::transport
