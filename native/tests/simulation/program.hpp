// What the threads of the ranks of a simulated job do, drawn from one seed, and where they come to a stop.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "workload.hpp"

namespace ringcore::simulation {

// What is submitted under one name by the members of a process set.
struct Shared {
  std::size_t set = 0;
  Collective collective{};
};

struct Step {
  enum class Kind : std::uint8_t { kSubmit, kWait, kCompute };
  Kind kind{};
  std::size_t shared = 0;
  Nanoseconds duration = 0;  // kCompute
};

struct Program {
  int ranks = 2;
  std::vector<std::vector<Rank>> sets;  // the first one is the world
  std::vector<Shared> shared;  // the last one is a barrier of all, where each rank ends
  std::vector<std::vector<std::vector<Step>>> threads;  // by rank
};

Program draw_program(Draw& draw);

// How far each thread comes when each operation ends as soon as all members have submitted it: whatever the timing.
std::vector<std::vector<std::size_t>> ends_of(const Program& program);

}  // namespace ringcore::simulation
