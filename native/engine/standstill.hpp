// What ranks say of themselves when all of their threads wait, and whether any of them can go on.
//
// A rank whose threads have all waited for a while says so in the log of the world: for which operations, each of which
// some other rank has yet to announce, and how much it has seen announced in each of its process sets. When every rank has
// said so, and those of a process set that somebody waits in have seen the same, nothing is under way there, and whoever
// could announce what is missing waits as well: no rank goes on before another one does, so none ever will. What a rank
// said before it went on does no harm: it has announced something since, and what the others have seen is more.
//
// This class is a function of the log: it knows no links, no clock and no thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace ringcore::engine {

// That all threads of a rank wait.
struct Standstill {
  struct Set {
    std::uint64_t key = 0;  // of its number and its members
    std::uint64_t members = 0;
    std::uint64_t seen = 0;  // a hash of how much each member has announced there, as this rank knows
  };
  struct Wait {
    std::uint64_t key = 0;  // of the process set
    bool barrier = false;
    std::string text;  // the operation, and who has not submitted it
  };
  std::vector<Set> sets;  // all that the rank is a member of
  std::vector<Wait> waits;
};

std::vector<std::byte> encode(const Standstill& standstill);
// Throws Error{kProtocol}.
Standstill decode_standstill(std::span<const std::byte> bytes);

// What all ranks have said last.
class Standstills {
 public:
  explicit Standstills(std::size_t ranks) : said_(ranks) {}

  // Null: the rank may go on.
  void note(Rank rank, std::optional<Standstill> standstill);
  const std::optional<Standstill>& of(Rank rank) const { return said_[static_cast<std::size_t>(rank)]; }
  // `absent`: by rank, who has joined or left, and announces nothing in the world. What is said of the world itself has
  // `world` for its key.
  bool deadlock(const std::vector<bool>& absent, std::uint64_t world) const;
  // Whether all that ranks wait for are barriers.
  bool only_barriers() const;
  std::string describe() const;
  void forget();

 private:
  bool agree_on(std::uint64_t key, std::uint64_t members) const;

  std::vector<std::optional<Standstill>> said_;
  std::size_t count_ = 0;
};

}  // namespace ringcore::engine
