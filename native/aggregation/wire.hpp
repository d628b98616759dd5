// What workers and switches send each other: one packet a message, over UDP.
//
// Source: iSwitch (Li et al., ISCA 2019) for the actions and what they mean, SwitchML (Sapio et al., NSDI 2021) for what
// doubled packets must not do. A packet is a header of 32 bytes, a payload and a tag of 8 bytes, all little endian; the
// type of service of the network's header tells control from data, so that those between can treat the two differently.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregation/mac.hpp"

namespace ringcore::aggregation {

// Two values of the pool that is left to local use (RFC 2474, section 6). Linux queues what is sent with the first
// ahead of what is sent with the second.
inline constexpr int kControlService = 0x1c;
inline constexpr int kDataService = 0x0c;

enum class Action : std::uint8_t {
  kData,  // a segment: a worker's contribution, or the switch's sum
  kJoin,  // a worker, or a switch as the worker of the next one, wants to take part
  kLeave,  // it takes no more part: the threshold sinks
  kReset,  // clear all buffers and counters: all join again
  kSetH,  // so many contributions complete a segment
  kFBcast,  // broadcast what there is of a segment
  kHelp,  // a packet of this segment was lost: send it again
  kHalt,  // suspend all workers
  kAck,  // success, or failure and why
};
inline constexpr int kActions = 9;

// What becomes of contributions.
enum class Sum : std::uint8_t {
  kFloat32,  // are added in the order of their coming
  kInt32,  // are added: no order changes a bit
  kMaxInt32,  // the largest
};
inline constexpr int kSums = 3;

// Of Ack.
enum class Answer : std::uint32_t {
  kWaits,  // of a Join: others have not joined yet, or it was not for this generation, which is told
  kReady,  // of a Join: all have
  kHave,  // of a Help: your contribution is there; the payload tells whose are missing
  kDone,  // of Leave, SetH, Reset, Halt and FBcast
  kUnknown,  // failure: no such session, or not of this generation (told in `segment`): join
  kFull,  // failure: the switch has no room for another session or member
  kTooOld,  // failure: the segment's sum is no more
  kMismatch,  // failure: what this worker sends does not fit what the others send
  kNoParent,  // failure: the next switch answers nothing
};
inline constexpr int kAnswers = 9;

namespace flags {
inline constexpr std::uint8_t kFromSwitch = 1;
inline constexpr std::uint8_t kResult = 2;  // a complete sum, or of a Help: of that, not of the contribution
inline constexpr std::uint8_t kIsSwitch = 4;  // of a Join: by a switch
}  // namespace flags

using Segment = std::uint64_t;
using MemberId = std::uint16_t;
inline constexpr MemberId kEverybody = 0xffff;

struct Header {
  Action action = Action::kData;
  Sum sum = Sum::kFloat32;
  std::uint8_t flags = 0;
  MemberId member = 0;  // of the worker, whoever of the two sends it
  std::uint32_t generation = 0;  // of the session; 0: none yet
  std::uint32_t value = 0;  // kData: contributions in it; kSetH: the threshold; kAck: an Answer
  std::uint64_t session = 0;
  Segment segment = 0;

  bool has(std::uint8_t flag) const { return (flags & flag) != 0; }
  Answer answer() const { return static_cast<Answer>(value); }
};

inline constexpr std::size_t kHeaderBytes = 32;
inline constexpr std::size_t kTagBytes = 8;
// Of a packet that Ethernet carries in one piece: 1500 without the headers of IP (20 bytes, 40 of version 6) and UDP.
inline constexpr std::size_t kElements = 352;
inline constexpr std::size_t kMostPayload = kElements * 4;
inline constexpr std::size_t kMostPacket = kHeaderBytes + kMostPayload + kTagBytes;

// A packet as it has come, which refers to the bytes that it was read from.
struct Packet {
  Header header;
  std::span<const std::byte> payload;
  std::span<const std::byte> sealed;  // what the tag is of
  std::uint64_t tag = 0;
};

// Nothing where it is no packet of ours. Who has sent it is not known before `is_authentic`.
std::optional<Packet> parse(std::span<const std::byte> bytes);
bool is_authentic(const Packet& packet, const Key& key);

// An address of the network, opaque here.
struct Address {
  std::array<std::byte, 28> bytes{};
  std::uint32_t size = 0;
  bool operator==(const Address&) const = default;
};

// Packets to be sent, in their order.
class Outbox {
 public:
  struct Item {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    Address to;
    bool control = false;
  };

  void send(const Header& header, std::span<const std::byte> payload, const Key& key, const Address& to);
  // The last packet once more.
  void send_again(const Address& to);
  // Behind each other what goes to one address, in the order that it had: the network takes such packets at once.
  void sort();
  std::span<const Item> items() const { return items_; }
  std::span<const std::byte> bytes(const Item& item) const {
    return std::span(bytes_).subspan(item.offset, item.bytes);
  }
  void clear() {
    items_.clear();
    bytes_.clear();
  }

 private:
  std::vector<Item> items_;
  std::vector<std::byte> bytes_;
};

// What a Join says besides: how many ranks the job has, how far segments may be apart, and which sums the worker has:
// all below `base`, and those whose bit is set behind it.
struct JoinRequest {
  std::uint32_t ranks = 0;
  std::uint32_t window = 0;
  std::uint32_t number = 0;  // grows with each Join of a worker: an old one that comes late changes nothing
  Segment base = 0;
  std::vector<bool> has;  // by segment, from `base` on, `window` of them

  std::vector<std::byte> encode() const;
  static std::optional<JoinRequest> decode(std::span<const std::byte> payload);
};

inline constexpr std::uint32_t kMostWindow = 512;
// Sums of segments and windows do not overflow.
inline constexpr Segment kMostSegment = Segment{1} << 62;

}  // namespace ringcore::aggregation
