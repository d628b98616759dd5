// A collective under way on this rank, whoever carries it out: the steps of a plan (executor.hpp), or a library that
// does whole collectives (backend.hpp).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/types.hpp"
#include "plan/layout.hpp"
#include "plan/plan.hpp"

namespace ringcore::plan {

// The memory that a run works on. Layouts and `count`s are in elements of `dtype`.
struct Operands {
  DType dtype{};
  ReduceOp op{};
  double final_scale = 1.0;  // multiplied into every complete sum
  Layout data_layout;
  Layout input_layout;
  std::byte* data = nullptr;
  const std::byte* input = nullptr;  // of an alltoall; of an allreduce, where that lies elsewhere than its sum
  // Where that lies elsewhere: of a gather, what plans only read; of a scatter, this rank's result.
  const std::byte* own_block = nullptr;
  std::byte* scratch = nullptr;
  std::vector<std::byte*> peer_data;  // by rank: their kData as seen from here; empty or null where it is not
  // By rank: their `input`s of an allreduce as seen from here, for a plan that `sums_at_once`. Empty: nobody reads them here.
  std::vector<std::byte*> peer_inputs;
  std::vector<std::byte*> peer_blocks;  // by rank: of their kInput, the block that is for this rank
};

// A state machine that never blocks. Its driver calls `progress` until it is done, or drops it when the job has failed.
// Before the first `progress` it touches no memory: the operands are only then complete.
class Run {
 public:
  virtual ~Run() = default;

  // Moves what can be moved now; true if anything did. Throws Error{kProtocol} on a transfer that does not fit.
  virtual bool progress() = 0;
  virtual bool done() const = 0;
  // Whether it can go on only when this rank sends or takes something.
  virtual bool waits_for(Rank rank) const = 0;
  // What it waits for: "rank 3 to send chunk 5 (4096 of 65536 bytes have come)".
  virtual std::string waiting_for() const = 0;

  // Whether it has something to send that the link does not take yet.
  virtual bool sending() const { return false; }
  // While it is held it begins no more transfers: a more urgent run sends. It takes what arrives.
  virtual void hold(bool) {}

  // Whether somebody else may read and write the operands even after it has been dropped: then they must stay.
  virtual bool in_use() const { return false; }
  // It is in use, the job has failed, and nobody will ask for it again.
  virtual void abandon() {}

  // From now on notes when each step ends; for the timeline. Without steps of its own there is nothing to note.
  virtual void time_steps(const Clock&) {}
  struct StepTime {
    int channel = 0;
    const Step* step = nullptr;
    std::size_t bytes = 0;
    Nanoseconds begin = 0;  // the end of the channel's step before it
    Nanoseconds end = 0;
  };
  const std::vector<StepTime>& step_times() const { return step_times_; }

 protected:
  std::vector<StepTime> step_times_;
};

}  // namespace ringcore::plan
