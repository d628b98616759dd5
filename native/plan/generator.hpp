// Plan generators: each knows one algorithm for one or more collectives.
//
// To add one, write a file in generators/ with a class like those there, and a function of the file's name that returns
// its one object: the build collects them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"
#include "plan/symmetry.hpp"
#include "plan/topology.hpp"

namespace ringcore::plan {

struct PlanRequest {
  Collective collective{};
  const Topology* topology = nullptr;
  Rank root = 0;
  int parts = 1;  // sub-chunks of each block, for pipelining; generators without a pipeline ignore it
  bool memory_visible = false;  // all ranks see each other's kData
  bool inputs_ready = false;  // see plan.hpp; only with memory_visible
  Compression compression{};  // of an allreduce between hosts

  int ranks() const { return topology->ranks(); }
};

class Generator {
 public:
  virtual ~Generator() = default;
  virtual std::string_view name() const = 0;
  // The plan with this rank's program. Nothing where the algorithm does not apply, for all ranks alike. There are at
  // least two ranks, and nobody serves unless `serves`. With a compression each sum is completed on one rank only.
  virtual std::optional<Plan> generate(const PlanRequest& request, Rank self) const = 0;
  virtual bool serves() const { return false; }
  // Whether its plans depend on how quick the topology's links are.
  virtual bool follows_rates() const { return false; }
  // Blocks are divided into so many parts at most. Where there are fewer blocks than ranks, into as many more.
  virtual int most_parts() const { return 16; }

  // What it claims of its plan, so that a proof need not look at every rank; segments, of every part. The verifier
  // believes nothing of it: it checks what it makes use of.
  virtual Symmetry symmetry(const PlanRequest& request) const { return Symmetry::none(request.topology->nodes()); }
};

// All of them, in a fixed order.
const std::vector<const Generator*>& generators();
// The one of that name; the name must be one.
const Generator& generator(std::string_view name);

}  // namespace ringcore::plan
