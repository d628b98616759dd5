// Message authentication of packets. Source: SipHash-2-4, Aumasson and Bernstein 2012, a keyed function for short
// messages: a packet costs a microsecond, and nothing is asked of a library that may be missing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ringcore::aggregation {

struct Key {
  static constexpr std::size_t kBytes = 16;
  std::array<std::byte, kBytes> bytes{};
};

std::uint64_t mac(const Key& key, std::span<const std::byte> message);

// The key of one session, of those that have the switch's key.
Key key_of_session(const Key& key, std::uint64_t session);

}  // namespace ringcore::aggregation
