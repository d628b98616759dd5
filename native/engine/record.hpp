// The control records that ranks exchange on lane 0, and their parser, which trusts nothing.
//
// A record is a 72-byte header, then by its flags: the descriptor, the splits, and a payload. Little-endian. Those that go
// along a tree have a header of 16 bytes, and all else in their payload.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.hpp"

namespace ringcore::engine {

enum class RecordType : std::uint8_t {
  // Entries of the sender's log in one process set; they have a position.
  kOperation,  // an operation was submitted
  kNoop,  // fills a position (see negotiation.hpp); may carry kFlush, kFill, kBlocked
  kJoin,  // the sender contributes nothing more until every rank has joined
  kCancel,  // an operation waited longer than the limit; the payload says what for
  kRefused,  // the sender has refused an operation before it was submitted; the payload says why
  kStandstill,  // all threads of the sender wait: see standstill.hpp; without a payload: no longer
  // To servers alone, where the members are told of a kNoop: the payload is a piece of a plan::Offer, and `rows` bytes of it
  // are still to come.
  kOffer,
  // Behind the last entry of a log; it has no position.
  kRemoved,  // the sender has removed the process set
  // Not in any log.
  kHello,  // the first record of a link: rank, size, protocol, settings that must agree
  kHeartbeat,  // rows: whether the sender asks for one; position: whose data it has long waited for, plus 1; 0: nobody's
  kAbort,  // the sender's engine failed, with the payload for an error; `location` is to blame, as `priority` saw
  kBye,  // the sender leaves; the payload says why, if there is a reason
  kByeSeen,  // answers kBye: the sender has read everything up to it
  kStackRequest,
  kStackReply,  // the payload: where the sender's Python threads stand
  kView,  // of elastic jobs; the payload: a ViewMessage
  // The payload: how much the sender had written into each lane before this epoch, and how it counts process sets.
  kLanes,
  kCarriedOut,  // of elastic jobs: the sender has the result of the operation
  kArrival,  // `rows`: the sender wants a place in a running job; `location`: of which host. The payload: whom it has met
  kLetIn,  // whether (`location`) the sender would now let in who wants the place `rows`
  // Entries of many logs.
  kTree,  // a ShortHeader, and behind it what tree_items.hpp writes
};
inline constexpr int kRecordTypeCount = 21;

enum RecordFlag : std::uint8_t {
  kHasDescriptor = 1,
  kHasSplits = 2,
  kEager = 4,  // the payload is the sender's contribution
  kFlush = 8,  // closes the open fusion buckets; of a kNoop: and again when the operation `name_hash` is complete
  kFill = 16,  // asks all ranks to fill their logs up to this position
  kBlocked = 32,  // the sender's only thread waits for `name_hash`; of a kCancel: it ends a deadlock
  kInPlace = 64,  // the data lies ready where the result goes
  kHasOutput = 128,  // behind the splits: the rows of what the sender gave for the result, of each tensor of a group
};

struct RecordHeader {
  std::uint32_t bytes = 0;  // of the whole record, padding to a multiple of 8 included
  RecordType type{};
  std::uint8_t flags = 0;
  ProcessSetId process_set = kWorld;
  std::uint32_t epoch = 0;
  std::uint32_t sequence = 0;  // counts the records of this link and direction: a lost or doubled one is noticed
  std::uint64_t position = 0;
  std::uint64_t signature = 0;
  std::uint64_t name_hash = 0;
  std::uint64_t rows = 0;  // first dimension; kOffer; kAbort: kind of error; kBye: who left first; kHeartbeat
  std::uint64_t location = 0;  // of the data in the sender's arena, plus 1; 0: not registered
  std::int32_t priority = 0;
  std::uint32_t descriptor_bytes = 0;
  std::uint32_t splits_count = 0;
  std::uint32_t payload_bytes = 0;
};
static_assert(sizeof(RecordHeader) == 72);

// What a kTree record has instead: the first fields of the above.
struct ShortHeader {
  std::uint32_t bytes = 0;
  RecordType type = RecordType::kTree;
  std::uint8_t flags = 0;  // how many bytes of padding the record ends with
  ProcessSetId process_set = kWorld;
  std::uint32_t epoch = 0;
  std::uint32_t sequence = 0;
};
static_assert(sizeof(ShortHeader) == 16);

inline constexpr std::size_t kMaxRecordBytes = 68 * 1024;
// Leaves room for the header and a descriptor.
inline constexpr std::size_t kMaxPayloadBytes = 64 * 1024;
inline constexpr std::size_t kMaxNameBytes = 4096;
// Of an encoded descriptor, besides the name and the parts of a group.
inline constexpr std::size_t kDescriptorBytes = 96;

// A record as it lies in received memory.
struct RecordView {
  RecordHeader header;
  std::span<const std::byte> descriptor;
  std::span<const std::byte> splits;
  std::span<const std::byte> payload;
  std::span<const std::byte> whole;

  std::string text() const { return {reinterpret_cast<const char*>(payload.data()), payload.size()}; }
};

// The record at the front of `bytes`; nullopt when it has not arrived whole. Throws Error{kProtocol} on anything that
// no correct peer sends: sizes out of bounds, unknown types.
std::optional<RecordView> parse_record(std::span<const std::byte> bytes);
// Whether a kTree record begins here.
bool is_tree_record(std::span<const std::byte> bytes);

// A record with its variable parts, ready to be written.
std::vector<std::byte> build_record(RecordHeader header, std::span<const std::byte> descriptor,
                                    std::span<const std::uint64_t> splits, std::span<const std::byte> payload);

std::vector<std::byte> encode(const Descriptor& descriptor);
// Throws Error{kProtocol}.
Descriptor decode_descriptor(std::span<const std::byte> bytes);

}  // namespace ringcore::engine
