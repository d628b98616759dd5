// Control records, as they lie at the front of a lane, and the descriptors in them.
#include "engine/record.hpp"

#include "base/error.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

void describe(Bytes bytes) {
  const engine::Descriptor descriptor = engine::decode_descriptor(bytes);
  const std::vector<std::byte> again = engine::encode(descriptor);
  const engine::Descriptor same = engine::decode_descriptor(again);
  require(same.signature() == descriptor.signature(), "a descriptor means the same behind a journey");
  require(same.parts.size() == descriptor.parts.size(), "a group keeps its parts");
}

void read(Bytes bytes) {
  while (!bytes.empty()) {
    const auto record = engine::parse_record(bytes);
    if (!record) return;
    require(!record->whole.empty() && record->whole.size() <= bytes.size(), "a record lies in what has arrived");
    require(record->splits.size() == std::size_t{record->header.splits_count} * 8, "splits are there");
    bytes = bytes.subspan(record->whole.size());
    if (!record->descriptor.empty()) describe(record->descriptor);
  }
}

}  // namespace

// The first byte says which of the two the rest is taken for.
void records(Bytes input) {
  Input bytes(input);
  try {
    bytes.flip() ? describe(bytes.rest()) : read(bytes.rest());
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kProtocol, "what cannot be read is an error of the protocol");
  }
}

}  // namespace ringcore::fuzz
