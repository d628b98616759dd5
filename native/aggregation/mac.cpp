#include "aggregation/mac.hpp"

#include <bit>
#include <cstring>

namespace ringcore::aggregation {
namespace {

static_assert(std::endian::native == std::endian::little, "packets and keys are little endian");

struct State {
  std::uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }
  void add(std::uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
};

}  // namespace

std::uint64_t mac(const Key& key, std::span<const std::byte> message) {
  std::uint64_t k0 = 0;
  std::uint64_t k1 = 0;
  std::memcpy(&k0, key.bytes.data(), sizeof(k0));
  std::memcpy(&k1, key.bytes.data() + sizeof(k0), sizeof(k1));
  State state{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573};
  const std::byte* at = message.data();
  const std::size_t words = message.size() / sizeof(std::uint64_t);
  for (std::size_t i = 0; i < words; ++i, at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    state.add(word);
  }
  std::uint64_t last = static_cast<std::uint64_t>(message.size()) << 56;
  const std::size_t rest = message.size() % sizeof(std::uint64_t);
  if (rest > 0) {
    std::uint64_t tail = 0;
    std::memcpy(&tail, at, rest);
    last |= tail;
  }
  state.add(last);
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

Key key_of_session(const Key& key, std::uint64_t session) {
  Key made;
  for (std::uint64_t half = 0; half < 2; ++half) {
    const std::array<std::uint64_t, 2> message = {session, half};
    const std::uint64_t word = mac(key, std::as_bytes(std::span(message)));
    std::memcpy(made.bytes.data() + half * sizeof(word), &word, sizeof(word));
  }
  return made;
}

}  // namespace ringcore::aggregation
