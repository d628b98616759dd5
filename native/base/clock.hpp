// Time, injected, so that tests can run the engine in virtual time.
#pragma once

#include <cstdint>
#include <string>

namespace ringcore {

using Nanoseconds = std::int64_t;

inline constexpr Nanoseconds kMillisecond = 1'000'000;
inline constexpr Nanoseconds kSecond = 1'000'000'000;

// For messages: "30 s", "0.5 s".
std::string in_seconds(Nanoseconds time);

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic; the epoch is arbitrary but the same for all ranks of one host.
  virtual Nanoseconds now() const = 0;
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  Nanoseconds now() const override;
};

}  // namespace ringcore
