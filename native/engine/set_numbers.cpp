#include "engine/set_numbers.hpp"

#include <string>

#include "base/error.hpp"

namespace ringcore::engine {

ProcessSetId SetNumbers::take() {
  for (int tries = 0; tries <= kLastCounted; ++tries) {
    const ProcessSetId slot = next_;
    next_ = slot == kLastCounted ? 1 : static_cast<ProcessSetId>(slot + 1);  // the world stays
    if (slots_[slot].taken) continue;
    slots_[slot].taken = true;
    return static_cast<ProcessSetId>(slots_[slot].use << kProcessSetBits | slot);
  }
  throw Error(ErrorKind::kResource, "this job has " + std::to_string(kLastCounted) +
                                        " process sets, and there can be no more at a time. Remedy: remove those that "
                                        "are not used any more, on all ranks.");
}

ProcessSetId SetNumbers::take_agreed(ProcessSetId number) {
  const std::string which =
      "process set " + std::to_string(number) + " of those that only their members add cannot be added";
  if (number > kMaxAgreed) {
    throw Error(ErrorKind::kResource, which + ": a job can have " + std::to_string(kMaxAgreed) +
                                          ". Remedy: keep process sets instead of adding them again and again, or let "
                                          "all ranks add them.");
  }
  const auto id = static_cast<ProcessSetId>(kLastCounted + number);
  if (number == 0 || !agreed_.insert(id).second) {
    throw Error(ErrorKind::kInvalidArgument,
                which + ". Remedy: count them from 1, use a number once, and call this on members only.");
  }
  return id;
}

void SetNumbers::free(ProcessSetId id) {
  if (slot_of(id) > kLastCounted) return;
  Slot& slot = slots_[slot_of(id)];
  slot = {static_cast<std::uint8_t>((slot.use + 1) % kUses), false};
}

bool SetNumbers::is_to_come(ProcessSetId id) const {
  if (slot_of(id) > kLastCounted) return !agreed_.contains(id);
  const Slot& slot = slots_[slot_of(id)];
  const int ahead = ((id >> kProcessSetBits) - slot.use + kUses) % kUses;
  return slot.taken ? ahead == 1 : ahead <= 1;
}

}  // namespace ringcore::engine
