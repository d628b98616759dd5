// Numbers that say how much of a long test runs.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace ringcore::testing {

inline std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

}  // namespace ringcore::testing
