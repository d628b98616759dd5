// What is wrong with a plan. Thrown inside the verifier, returned by `verify`.
#pragma once

#include <cstddef>
#include <string>

#include "plan/plan.hpp"

namespace ringcore::plan {

struct Flaw {
  std::string text;
};

[[noreturn]] inline void flaw_at(const Header& header, Rank rank, std::size_t channel, std::size_t step,
                                 const std::string& what) {
  throw Flaw{header.generator + ": rank " + std::to_string(rank) + ", channel " + std::to_string(channel) + ", step " +
             std::to_string(step) + ": " + what};
}

}  // namespace ringcore::plan
