// What operations look like, by their signature. A member describes one in full and names it by its hash afterwards.
//
// Names with a step number in them would fill the memory: a member counts the different signatures that it announces, in
// generations of so many, and what it has not used in the last two it describes again. That follows from its own log
// alone, in which the signatures stand in the same order for everybody. So the member and those who hear it, each when
// it gets there, come to the same conclusion, and nobody is ever sent a hash that it has forgotten.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/request.hpp"

namespace ringcore::engine {

class Signatures {
 public:
  // As many as operations without a name count until theirs come again.
  static constexpr std::uint32_t kGeneration = 16384;

  explicit Signatures(std::size_t members, std::uint32_t generation = kGeneration);

  // The member's next announcement has this signature. False when the member has to describe it.
  bool use(int member, std::uint64_t signature);
  // ... and here is what it looks like; the first one who says so counts.
  void describe(int member, std::uint64_t signature, std::shared_ptr<const Descriptor> descriptor);
  // Whether the member has announced it, lately.
  bool was_used(int member, std::uint64_t signature);
  // Null when nobody has described it, or not lately.
  std::shared_ptr<const Descriptor> find(std::uint64_t signature);

  std::size_t size() const { return known_.size(); }

 private:
  struct Known {
    std::shared_ptr<const Descriptor> descriptor;
    std::vector<std::uint32_t> used;  // by member: the generation of its last use; 0: none
  };
  struct Count {
    std::uint32_t generation = 2;  // the present one
    std::uint32_t signatures = 0;  // different ones in it
  };

  Known* look_up(std::uint64_t signature);
  bool is_fresh(const Known& known, std::size_t member) const {
    return known.used[member] + 1 >= counts_[member].generation;
  }
  void note(Known& known, std::size_t member);
  void forget();

  std::uint32_t generation_;
  std::vector<Count> counts_;  // by member
  std::unordered_map<std::uint64_t, Known> known_;
  std::size_t forget_at_;
  // What was looked for last: members announce the same one after the other.
  std::uint64_t last_signature_ = 0;
  Known* last_ = nullptr;
};

}  // namespace ringcore::engine
