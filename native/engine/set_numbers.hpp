// The numbers of process sets.
//
// A set that all ranks add has a slot that all of them count, and that is free again once it was removed. The number says
// also which use of the slot it is: so late records of the set before are told from early ones of the next.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "engine/request.hpp"

namespace ringcore::engine {

// What tells the sets of a job from each other at one time.
constexpr ProcessSetId slot_of(ProcessSetId id) { return id & ((1U << kProcessSetBits) - 1); }

class SetNumbers {
 public:
  // Those that all ranks add are below; the world is the first of them.
  static constexpr ProcessSetId kLastCounted = (1U << kProcessSetBits) / 2 - 1;
  static constexpr ProcessSetId kMaxAgreed = (1U << kProcessSetBits) - 1 - kLastCounted;

  // Of a set that all ranks add, in the same order as they add and remove others. Throws Error{kResource}.
  ProcessSetId take();
  // Of one that only its members add, under a number that they have agreed on: from 1, and never used before. Throws
  // Error{kResource, kInvalidArgument}.
  ProcessSetId take_agreed(ProcessSetId number);
  // It was removed. Does nothing where others had done so before, see `follow`.
  void free(ProcessSetId id);
  // When the members of an elastic job change, some may have added or removed a set, and others not: from then on all count
  // as the one does that has come furthest. Whoever joins has counted nothing, and counts as any of them first.
  std::vector<std::uint16_t> counted() const;
  void follow(std::span<const std::uint16_t> counted, bool joins);
  // Whether a set that is not here may still be added: it was not removed, and is not the business of others.
  bool is_to_come(ProcessSetId id) const;

 private:
  static constexpr int kUses = 1 << (16 - kProcessSetBits);
  struct Slot {
    std::uint8_t use = 0;  // the present one, or the next
    bool taken = false;
    // Grows by one whenever the set is added or removed, and begins again after a while.
    int turn() const { return 2 * use + (taken ? 1 : 0); }
  };

  std::array<Slot, kLastCounted + 1> slots_;
  ProcessSetId next_ = kWorld;
  std::unordered_set<ProcessSetId> agreed_;  // all that were ever taken
};

}  // namespace ringcore::engine
