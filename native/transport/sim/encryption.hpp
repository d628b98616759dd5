// Encrypted links of the simulated network: the state machine of TLS (secure_stream.hpp) with a toy handshake and a toy
// cipher, which protect nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/link.hpp"

namespace ringcore::transport {

// `inner` carries the records. `secret`: what both ends know. Keys change after so few bytes that they change often.
std::unique_ptr<Link> make_toy_encrypted_link(std::unique_ptr<Link> inner, Rank self, Rank peer, std::uint64_t secret);

}  // namespace ringcore::transport
