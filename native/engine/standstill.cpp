#include "engine/standstill.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"

namespace ringcore::engine {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kProtocol, "said what it waits for in a malformed record: " + what);
}

void put(std::vector<std::byte>& out, std::uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<std::byte>(number >> shift));
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  std::uint64_t number() {
    std::uint64_t number = 0;
    std::memcpy(&number, take(sizeof(number)).data(), sizeof(number));
    return number;
  }
  std::string text() {
    const auto bytes = take(number());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size()) refuse("it ends early");
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace

std::vector<std::byte> encode(const Standstill& standstill) {
  std::vector<std::byte> out;
  put(out, standstill.sets.size());
  for (const Standstill::Set& set : standstill.sets) {
    for (const std::uint64_t number : {set.key, set.members, set.seen}) put(out, number);
  }
  for (const Standstill::Wait& wait : standstill.waits) {
    for (const std::uint64_t number : {wait.key, std::uint64_t{wait.barrier}, std::uint64_t{wait.text.size()}}) {
      put(out, number);
    }
    for (const char letter : wait.text) out.push_back(static_cast<std::byte>(letter));
  }
  return out;
}

Standstill decode_standstill(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Standstill standstill;
  for (std::uint64_t left = reader.number(); left > 0; --left) {
    Standstill::Set& set = standstill.sets.emplace_back();
    set.key = reader.number();
    set.members = reader.number();
    set.seen = reader.number();
  }
  while (!reader.empty()) {
    Standstill::Wait& wait = standstill.waits.emplace_back();
    wait.key = reader.number();
    wait.barrier = reader.number() != 0;
    wait.text = reader.text();
  }
  if (standstill.waits.empty()) refuse("it waits for nothing");
  return standstill;
}

void Standstills::note(Rank rank, std::optional<Standstill> standstill) {
  std::optional<Standstill>& said = said_[static_cast<std::size_t>(rank)];
  count_ += static_cast<std::size_t>(standstill.has_value());
  count_ -= static_cast<std::size_t>(said.has_value());
  said = std::move(standstill);
}

bool Standstills::deadlock(const std::vector<bool>& absent, std::uint64_t world) const {
  const auto away = static_cast<std::size_t>(std::count(absent.begin(), absent.end(), true));
  if (count_ == 0 || count_ + away < said_.size()) return false;
  for (std::size_t rank = 0; rank < said_.size(); ++rank) {
    if (!said_[rank] && !absent[rank]) return false;
  }
  return std::all_of(said_.begin(), said_.end(), [&](const std::optional<Standstill>& said) {
    if (!said) return true;
    return std::all_of(said->waits.begin(), said->waits.end(), [&](const Standstill::Wait& wait) {
      const auto is_it = [&](const Standstill::Set& set) { return set.key == wait.key; };
      const auto set = std::find_if(said->sets.begin(), said->sets.end(), is_it);
      return set != said->sets.end() && agree_on(wait.key, wait.key == world ? count_ : set->members);
    });
  });
}

// Whether so many have spoken of the process set, and have all seen the same there.
bool Standstills::agree_on(std::uint64_t key, std::uint64_t members) const {
  std::optional<std::uint64_t> seen;
  std::uint64_t speakers = 0;
  for (const std::optional<Standstill>& said : said_) {
    if (!said) continue;
    for (const Standstill::Set& set : said->sets) {
      if (set.key != key) continue;
      if (seen && *seen != set.seen) return false;
      seen = set.seen;
      ++speakers;
    }
  }
  return speakers == members;
}

bool Standstills::only_barriers() const {
  return std::all_of(said_.begin(), said_.end(), [](const std::optional<Standstill>& said) {
    return !said || std::all_of(said->waits.begin(), said->waits.end(), [](const auto& wait) { return wait.barrier; });
  });
}

std::string Standstills::describe() const {
  std::string text;
  for (std::size_t rank = 0; rank < said_.size(); ++rank) {
    if (!said_[rank]) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " in ";
    for (const Standstill::Wait& wait : said_[rank]->waits) {
      text += (&wait == said_[rank]->waits.data() ? "" : " and in ") + wait.text;
    }
  }
  return text;
}

void Standstills::forget() {
  std::fill(said_.begin(), said_.end(), std::nullopt);
  count_ = 0;
}

}  // namespace ringcore::engine
