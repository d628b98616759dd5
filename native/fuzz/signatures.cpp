// Signatures of ranks that hear each other late, in an order of their own, and describe more than they have to.
#include "engine/signatures.hpp"

#include <array>
#include <deque>
#include <memory>

#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

constexpr int kRanks = 3;
constexpr std::uint32_t kGeneration = 3;
// Of a member what it has used in two generations, and what has come since the last look.
constexpr std::size_t kMostKept = kRanks * 2 * kGeneration + kGeneration + 1;

struct Announcement {
  std::uint64_t signature = 0;
  bool described = false;
};

struct Hearer {
  engine::Signatures signatures{kRanks, kGeneration};
  std::array<std::deque<Announcement>, kRanks> heard;  // by who has said it, and not yet looked at
};

std::shared_ptr<const engine::Descriptor> description(std::uint64_t signature) {
  auto made = std::make_shared<engine::Descriptor>();
  made->name = std::to_string(signature);
  return made;
}

void announce(std::array<Hearer, kRanks>& ranks, int rank, Input& bytes) {
  Announcement said{.signature = bytes.below(64)};
  engine::Signatures& own = ranks[static_cast<std::size_t>(rank)].signatures;
  said.described = bytes.below(8) == 0 || !own.use(rank, said.signature);
  if (said.described) own.describe(rank, said.signature, description(said.signature));
  for (int other = 0; other < kRanks; ++other) {
    if (other != rank) ranks[static_cast<std::size_t>(other)].heard[static_cast<std::size_t>(rank)].push_back(said);
  }
}

void hear(Hearer& hearer, int speaker) {
  auto& heard = hearer.heard[static_cast<std::size_t>(speaker)];
  if (heard.empty()) return;
  const Announcement said = heard.front();
  heard.pop_front();
  if (said.described) {
    hearer.signatures.describe(speaker, said.signature, description(said.signature));
  } else {
    require(hearer.signatures.use(speaker, said.signature), "nobody is sent a hash that it has forgotten");
  }
  require(hearer.signatures.was_used(speaker, said.signature), "what was said a moment ago is known");
  const auto found = hearer.signatures.find(said.signature);
  require(found != nullptr && found->name == std::to_string(said.signature), "a hash stands for what was described");
  require(hearer.signatures.size() <= kMostKept, "what nobody uses any more is forgotten");
}

}  // namespace

void signatures(Bytes input) {
  Input bytes(input);
  std::array<Hearer, kRanks> ranks;
  while (!bytes.empty()) {
    const int rank = static_cast<int>(bytes.below(kRanks));
    if (bytes.flip()) {
      announce(ranks, rank, bytes);
    } else {
      hear(ranks[static_cast<std::size_t>(rank)], static_cast<int>(bytes.below(kRanks)));
    }
  }
}

}  // namespace ringcore::fuzz
