// What sessions tell tests: how much of a long one runs, and what is to be seen.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace ringcore::testing {

inline std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

inline std::string text_from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace ringcore::testing
