#include "engine/signatures.hpp"

#include <algorithm>
#include <utility>

namespace ringcore::engine {

Signatures::Signatures(std::size_t members, std::uint32_t generation)
    : generation_(generation), counts_(members), forget_at_(generation) {}

Signatures::Known* Signatures::look_up(std::uint64_t signature) {
  if (last_ == nullptr || last_signature_ != signature) {
    const auto found = known_.find(signature);
    if (found == known_.end()) return nullptr;
    last_signature_ = signature;
    last_ = &found->second;
  }
  return last_;
}

bool Signatures::use(int member, std::uint64_t signature) {
  Known* known = look_up(signature);
  if (known == nullptr || !is_fresh(*known, static_cast<std::size_t>(member))) return false;
  note(*known, static_cast<std::size_t>(member));
  return true;
}

void Signatures::describe(int member, std::uint64_t signature, std::shared_ptr<const Descriptor> descriptor) {
  Known* known = look_up(signature);
  if (known == nullptr) {
    if (known_.size() >= forget_at_) forget();
    known = &known_[signature];
    *known = {std::move(descriptor), std::vector<std::uint32_t>(counts_.size(), 0)};
  }
  note(*known, static_cast<std::size_t>(member));
}

bool Signatures::was_used(int member, std::uint64_t signature) {
  const Known* known = look_up(signature);
  return known != nullptr && is_fresh(*known, static_cast<std::size_t>(member));
}

std::shared_ptr<const Descriptor> Signatures::find(std::uint64_t signature) {
  const Known* known = look_up(signature);
  return known == nullptr ? nullptr : known->descriptor;
}

void Signatures::note(Known& known, std::size_t member) {
  Count& count = counts_[member];
  if (std::exchange(known.used[member], count.generation) == count.generation) return;
  if (++count.signatures == generation_) count = {count.generation + 1, 0};
}

// Drops what every member would describe again.
void Signatures::forget() {
  std::erase_if(known_, [this](const auto& item) {
    for (std::size_t m = 0; m < counts_.size(); ++m) {
      if (is_fresh(item.second, m)) return false;
    }
    return true;
  });
  // Often enough for the memory, and seldom enough to cost nothing for each one.
  forget_at_ = known_.size() + std::max<std::size_t>(generation_ / 4, 1);
  last_ = nullptr;
}

}  // namespace ringcore::engine
