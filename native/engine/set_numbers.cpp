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
  if (!slot.taken || slot.use != id >> kProcessSetBits) return;
  slot = {static_cast<std::uint8_t>((slot.use + 1) % kUses), false};
}

std::vector<std::uint16_t> SetNumbers::counted() const {
  std::vector<std::uint16_t> numbers{next_};
  for (const Slot& slot : slots_) numbers.push_back(static_cast<std::uint16_t>(slot.turn()));
  while (numbers.size() > 1 && numbers.back() == 0) numbers.pop_back();
  return numbers;
}

void SetNumbers::follow(std::span<const std::uint16_t> counted, bool joins) {
  // Nobody comes so far ahead of the others: sets are added and removed by all.
  const auto is_ahead = [joins](int theirs, int own, int of) {
    const int ahead = (theirs - own + of) % of;
    return joins ? ahead > 0 : ahead > 0 && ahead < of / 2;
  };
  constexpr int kTurns = 2 * kUses;
  if (counted.empty() || counted.size() > slots_.size() + 1 || counted[0] > kLastCounted) {
    throw Error(ErrorKind::kProtocol, "counts process sets that cannot be");
  }
  if (is_ahead(counted[0], next_, kLastCounted + 1)) next_ = counted[0];
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const int theirs = i + 1 < counted.size() ? counted[i + 1] % kTurns : 0;
    if (!is_ahead(theirs, slots_[i].turn(), kTurns)) continue;
    slots_[i] = {static_cast<std::uint8_t>(theirs / 2), theirs % 2 != 0};
  }
}

bool SetNumbers::is_to_come(ProcessSetId id) const {
  if (slot_of(id) > kLastCounted) return !agreed_.contains(id);
  const Slot& slot = slots_[slot_of(id)];
  const int ahead = ((id >> kProcessSetBits) - slot.use + kUses) % kUses;
  return slot.taken ? ahead == 1 : ahead <= 1;
}

}  // namespace ringcore::engine
