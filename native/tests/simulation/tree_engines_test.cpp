// Whole engines that agree along a tree beside engines that send each to each: the same random programs, without faults, end
// alike on every rank. Decisions alone are compared, with deaths, in agreement_tree_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "../from_environment.hpp"
#include "cluster.hpp"
#include "oracles.hpp"

using namespace ringcore;
using testing::from_environment;

namespace {

// One life of the seed's job, in which process sets of more than so many members agree along a tree.
struct Life {
  simulation::Workload workload;
  std::unique_ptr<simulation::Cluster> cluster;
  std::string flaw;

  Life(std::uint64_t seed, int direct_members) {
    simulation::Draw draw(seed);
    workload = simulation::draw_workload(draw);
    workload.direct_members = direct_members;
    cluster = std::make_unique<simulation::Cluster>(workload, std::vector<simulation::Fault>{}, draw, 7);
    flaw = cluster->run();
    if (flaw.empty()) flaw = cluster->flaw();
    if (flaw.empty()) flaw = simulation::check(*cluster);
  }
};

// Whether somebody is missed: who hears of it first, and who has left by then, is a matter of time.
bool is_missed(const simulation::Phase& phase) {
  return std::ranges::any_of(phase.requests, [](const auto& request) { return request.missing_member >= 0; });
}

// How it ended for one member. Whom a message names depends on who had come by then, what it is about does not.
std::string difference(const simulation::Task& flat, const simulation::Task& tree) {
  if ((flat.error == nullptr) != (tree.error == nullptr)) {
    return std::string("only one failed: ") + (flat.error != nullptr ? flat.error : tree.error)->what();
  }
  if (flat.error != nullptr) {
    if (flat.error->kind() == tree.error->kind()) return "";
    return std::string("they failed differently:\n    ") + flat.error->what() + "\n    " + tree.error->what();
  }
  if (flat.submitted != tree.submitted || flat.taken != tree.taken) return "only one was done";
  // Sums that are rounded depend on who is added to whom first.
  const bool rounds = !flat.request->exact || flat.request->compression != Compression::kNone;
  return !rounds && flat.got != tree.got ? "they got different bits" : "";
}

std::string flaw_of(std::uint64_t seed) {
  const Life flat(seed, 16);
  const Life tree(seed, 1);
  for (const Life* life : {&flat, &tree}) {
    if (!life->flaw.empty()) return life->flaw;
  }
  for (std::size_t rank = 0; rank < flat.cluster->ranks().size(); ++rank) {
    const auto& of_flat = flat.cluster->ranks()[rank].tasks;
    const auto& of_tree = tree.cluster->ranks()[rank].tasks;
    if (of_flat.size() != of_tree.size()) return "rank " + std::to_string(rank) + " had other tasks";
    for (std::size_t task = 0; task < of_flat.size(); ++task) {
      if (is_missed(flat.workload.phases[of_flat[task].phase])) continue;
      const std::string found = difference(of_flat[task], of_tree[task]);
      if (found.empty()) continue;
      return flat.cluster->describe("rank " + std::to_string(rank) + ", '" + of_flat[task].request->name +
                                    "' of phase " + std::to_string(of_flat[task].phase) + ": " + found);
    }
  }
  return "";
}

}  // namespace

TEST_CASE("random programs: whole engines end alike, whether they agree along a tree or each with each") {
  const std::uint64_t only = from_environment("RINGCORE_SIMULATION_SEED", 0);
  const std::uint64_t first = only != 0 ? only : from_environment("RINGCORE_SIMULATION_FIRST", 1);
  const std::uint64_t count = only != 0 ? 1 : from_environment("RINGCORE_SIMULATION_SEEDS", 300);
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    const std::string flaw = flaw_of(seed);
    if (flaw.empty()) continue;
    ++failures;
    MESSAGE("seed " << seed << ": " << flaw);
  }
  CHECK(failures == 0);
}
