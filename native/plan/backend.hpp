// A library that does whole collectives (MPI, NCCL), beside the plan executor; the planner chooses between the two.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/error.hpp"
#include "plan/run.hpp"

namespace ringcore::plan {

// What an operation asks for; the same on all ranks.
struct Query {
  Collective collective{};
  std::size_t bytes = 0;  // of an alltoall, whose ranks may give more and less: what a rank gives on average
  DType dtype{};
  ReduceOp op{};
  Rank root = 0;
  bool registered = false;    // every rank's data lies in memory that its host's ranks see
  bool inputs_ready = false;  // see plan.hpp
  bool even_blocks = false;   // of an alltoall: every rank gives every rank as much
  Compression compression{};  // of an allreduce: see plan.hpp
  bool deterministic = false; // the bits may depend on nothing but the values
};

// A run cannot go on, as its backend is of no use to this rank any more, though no rank was lost: whoever can agree with the
// others to go on with plans alone may do so. `what` is a line for the log then.
class BackendLost : public Error {
 public:
  using Error::Error;
};

// One serves one process set; ranks are indices among its members. All calls come from one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  // "mpi", "nccl": what timelines and messages say.
  virtual std::string_view name() const = 0;
  // Whether it can do this; the same on all ranks.
  virtual bool offers(const Query& query) const = 0;
  // How long it will take, as far as can be said without trying; the same on all ranks. What is not hopeless beside the
  // best plan is then measured.
  virtual double predict_seconds(const Query& query, std::size_t bytes) const = 0;
  // A run in place on `operands` (plan.hpp says what its buffers hold before and after), which stay until the run is done
  // or dropped. In the layouts a chunk is a rank's block, or all of an allreduce or broadcast. The runs of a lane come in
  // the same order on all ranks, one after the other; lanes go side by side.
  virtual std::unique_ptr<Run> start(const Query& query, Operands operands, int lane) = 0;
};

}  // namespace ringcore::plan
