// What ranks say of themselves that wait, malformed or not, and what follows from what all have said.
#include "engine/standstill.hpp"

#include "base/error.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

constexpr std::size_t kRanks = 3;

engine::Standstill some_standstill(Input& bytes) {
  engine::Standstill made;
  for (std::size_t sets = bytes.below(4); sets > 0; --sets) {
    made.sets.push_back({.key = bytes.below(3), .members = 1 + bytes.below(kRanks), .seen = bytes.below(2)});
  }
  for (std::size_t waits = 1 + bytes.below(3); waits > 0; --waits) {
    made.waits.push_back({.key = bytes.below(3), .barrier = bytes.flip(), .text = "it"});
  }
  return made;
}

}  // namespace

void standstills(Bytes input) {
  Input bytes(input);
  engine::Standstills said(kRanks);
  while (!bytes.empty()) {
    const auto rank = static_cast<Rank>(bytes.below(kRanks));
    const auto kind = bytes.below(4);
    try {
      if (kind == 0) {
        said.note(rank, std::nullopt);
      } else if (kind == 1) {
        said.note(rank, engine::decode_standstill(bytes.piece(bytes.take<std::uint8_t>())));
      } else {
        const std::vector<std::byte> once = encode(some_standstill(bytes));
        engine::Standstill read = engine::decode_standstill(once);
        require(encode(read) == once, "what is written is read");
        said.note(rank, std::move(read));
      }
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::kProtocol, "what cannot be read is an error of the protocol");
    }
    const std::vector<bool> absent = {bytes.below(8) == 0, bytes.below(8) == 0, bytes.below(8) == 0};
    if (said.deadlock(absent, bytes.below(3))) {
      require(!said.describe().empty() || (absent[0] && absent[1] && absent[2]), "a deadlock is told");
      said.only_barriers();
      if (bytes.flip()) said.forget();
    }
  }
}

}  // namespace ringcore::fuzz
