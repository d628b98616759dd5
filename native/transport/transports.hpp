// The list of transports: what may connect two ranks. Each is a folder beside this file, with its link and what makes one.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace ringcore::transport {

enum class Transport : std::uint8_t { kShm, kTcp, kMpi };

// By the names that settings, timelines and messages use.
inline constexpr std::array<std::pair<std::string_view, Transport>, 3> kTransports{{
    {"shm", Transport::kShm},
    {"tcp", Transport::kTcp},
    {"mpi", Transport::kMpi},
}};

}  // namespace ringcore::transport
