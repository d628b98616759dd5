#include "base/hash.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace ringcore {
namespace {

using Lane = std::uint64_t;

constexpr Lane kPrime1 = 11400714785074694791U;
constexpr Lane kPrime2 = 14029467366897019727U;
constexpr Lane kPrime3 = 1609587929392839161U;
constexpr Lane kPrime4 = 9650029242287828579U;
constexpr Lane kPrime5 = 2870177450012600261U;

Lane round(Lane lane, Lane input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

// The value at the front, little-endian as all that this runs on; takes it off.
template <typename Value>
Value take(std::span<const std::byte>& bytes) {
  Value value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes = bytes.subspan(sizeof(value));
  return value;
}

// Four lanes side by side, each of which takes every fourth word: their multiplications do not wait for each other.
Lane hash_of_stripes(std::span<const std::byte>& bytes) {
  std::array<Lane, 4> lanes{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  while (bytes.size() >= sizeof(lanes)) {
    for (Lane& lane : lanes) lane = round(lane, take<Lane>(bytes));
  }
  Lane hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (const Lane lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

}  // namespace

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  const Lane size = bytes.size();
  Lane hash = size >= 4 * sizeof(Lane) ? hash_of_stripes(bytes) : kPrime5;
  hash += size;
  while (bytes.size() >= sizeof(Lane)) hash = std::rotl(hash ^ round(0, take<Lane>(bytes)), 27) * kPrime1 + kPrime4;
  if (bytes.size() >= sizeof(std::uint32_t)) {
    hash = std::rotl(hash ^ take<std::uint32_t>(bytes) * kPrime1, 23) * kPrime2 + kPrime3;
  }
  while (!bytes.empty()) hash = std::rotl(hash ^ take<std::uint8_t>(bytes) * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace ringcore
