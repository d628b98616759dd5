#include "aggregation/wire.hpp"

#include <algorithm>
#include <cstring>

namespace ringcore::aggregation {
namespace {

constexpr std::uint32_t kMagic = 0x31534352;  // "RCS1"
constexpr unsigned kFlagShift = 4;

// As it is on the wire.
struct Wire {
  std::uint32_t magic;
  std::uint8_t action;
  std::uint8_t sum_and_flags;
  std::uint16_t member;
  std::uint32_t generation;
  std::uint32_t value;
  std::uint64_t session;
  std::uint64_t segment;
};
static_assert(sizeof(Wire) == kHeaderBytes);

struct JoinWire {
  std::uint32_t ranks;
  std::uint32_t window;
  std::uint32_t number;
  std::uint32_t reserved;
  std::uint64_t base;
};
constexpr std::size_t kBits = 8;

std::size_t bytes_for(std::size_t bits) { return (bits + 4 * kBits - 1) / (4 * kBits) * 4; }

}  // namespace

std::optional<Packet> parse(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes + kTagBytes || bytes.size() > kMostPacket) return std::nullopt;
  Wire wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  const unsigned sum = wire.sum_and_flags & ((1U << kFlagShift) - 1);
  if (wire.magic != kMagic || wire.action >= kActions || sum >= kSums) return std::nullopt;
  Packet packet;
  packet.header = {.action = static_cast<Action>(wire.action),
                   .sum = static_cast<Sum>(sum),
                   .flags = static_cast<std::uint8_t>(wire.sum_and_flags >> kFlagShift),
                   .member = wire.member,
                   .generation = wire.generation,
                   .value = wire.value,
                   .session = wire.session,
                   .segment = wire.segment};
  if (packet.header.action == Action::kAck && wire.value >= kAnswers) return std::nullopt;
  packet.sealed = bytes.first(bytes.size() - kTagBytes);
  packet.payload = packet.sealed.subspan(kHeaderBytes);
  if (packet.payload.size() % sizeof(std::uint32_t) != 0) return std::nullopt;
  std::memcpy(&packet.tag, bytes.data() + packet.sealed.size(), kTagBytes);
  return packet;
}

// The difference tells nothing by its time: tags are compared as one word.
bool is_authentic(const Packet& packet, const Key& key) { return mac(key, packet.sealed) == packet.tag; }

void Outbox::send(const Header& header, std::span<const std::byte> payload, const Key& key, const Address& to) {
  const Wire wire{.magic = kMagic,
                  .action = static_cast<std::uint8_t>(header.action),
                  .sum_and_flags = static_cast<std::uint8_t>(static_cast<unsigned>(header.sum) |
                                                             static_cast<unsigned>(header.flags) << kFlagShift),
                  .member = header.member,
                  .generation = header.generation,
                  .value = header.value,
                  .session = header.session,
                  .segment = header.segment};
  const std::size_t begin = bytes_.size();
  const std::size_t sealed = kHeaderBytes + payload.size();
  bytes_.resize(begin + sealed + kTagBytes);
  std::byte* const at = bytes_.data() + begin;
  std::memcpy(at, &wire, sizeof(wire));
  if (!payload.empty()) std::memcpy(at + kHeaderBytes, payload.data(), payload.size());
  const std::uint64_t tag = mac(key, {at, sealed});
  std::memcpy(at + sealed, &tag, sizeof(tag));
  items_.push_back({begin, sealed + kTagBytes, to, header.action != Action::kData});
}

void Outbox::send_again(const Address& to) {
  Item item = items_.back();
  item.to = to;
  items_.push_back(item);
}

void Outbox::sort() {
  std::ranges::stable_sort(items_, std::ranges::lexicographical_compare,
                           [](const Item& item) -> const auto& { return item.to.bytes; });
}

std::vector<std::byte> JoinRequest::encode() const {
  const JoinWire wire{ranks, window, number, 0, base};
  std::vector<std::byte> bytes(sizeof(wire) + bytes_for(has.size()));
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  for (std::size_t i = 0; i < has.size(); ++i) {
    if (has[i]) bytes[sizeof(wire) + i / kBits] |= std::byte{1} << (i % kBits);
  }
  return bytes;
}

std::optional<JoinRequest> JoinRequest::decode(std::span<const std::byte> payload) {
  JoinWire wire;
  if (payload.size() < sizeof(wire)) return std::nullopt;
  std::memcpy(&wire, payload.data(), sizeof(wire));
  if (wire.window == 0 || wire.window > kMostWindow || wire.ranks == 0) return std::nullopt;
  if (wire.base > kMostSegment || payload.size() != sizeof(wire) + bytes_for(wire.window)) return std::nullopt;
  JoinRequest request{.ranks = wire.ranks, .window = wire.window, .number = wire.number, .base = wire.base, .has = {}};
  for (std::size_t i = 0; i < wire.window; ++i) {
    request.has.push_back((payload[sizeof(wire) + i / kBits] >> (i % kBits) & std::byte{1}) != std::byte{0});
  }
  return request;
}

}  // namespace ringcore::aggregation
