// Proofs and predictions that look at one rank of each orbit, against those that look at all ranks' programs.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "plan/cost.hpp"
#include "plan/planner.hpp"
#include "plan/verifier.hpp"
#include "plan_cases.hpp"

using namespace ringcore;
using namespace ringcore::plan;
using testing::kCollectives;
using testing::topologies;

namespace {

// Everything that the generators offer.
template <class Use>
void each_plan(int ranks, const std::vector<int>& parts_to_try, Use use) {
  for (const Topology& topology : topologies(ranks, 2)) {
    for (const Generator* generator : generators()) {
      for (const Collective collective : kCollectives) {
        for (const int parts : parts_to_try) {
          const PlanRequest request{.collective = collective,
                                    .topology = &topology,
                                    .root = ranks / 2,
                                    .parts = parts,
                                    .memory_visible = topology.single_host()};
          if (generator->generate(request, 0)) use(*generator, request);
        }
      }
    }
  }
}

// One mistake somewhere in the program; it may be none.
void mistake(Program& program, const Header& header, std::mt19937& random) {
  const auto draw = [&random](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  Channel& channel = program.channels[draw(program.channels.size())];
  if (channel.empty()) return;
  const std::size_t at = draw(channel.size());
  const auto place = channel.begin() + static_cast<std::ptrdiff_t>(at);
  Step& step = channel[at];
  switch (draw(6)) {
    case 0: channel.erase(place); break;
    case 1: channel.insert(place, Step(step)); break;
    case 2: std::swap(step, channel[(at + 1) % channel.size()]); break;
    case 3:
      if (step.peer >= 0) step.peer = static_cast<Rank>(draw(static_cast<std::size_t>(header.ranks)));
      break;
    case 4:
      if (!step.targets.empty()) step.targets[0].chunk = static_cast<std::uint32_t>(draw(header.chunks));
      break;
    default: step.final = !step.final; break;
  }
  if (!program.segment_ends.empty()) program.segment_ends.back() = channel.size();
}

// Every rank does what its representative does, turned.
Excerpt unfolded(const Excerpt& folded) {
  Excerpt result;
  static_cast<Header&>(result) = folded;
  result.symmetry = Symmetry::none(folded.nodes);
  for (Rank rank = 0; rank < folded.nodes; ++rank) {
    const Program& program = folded.programs[static_cast<std::size_t>(folded.symmetry.orbit_of(rank))];
    result.programs.push_back(folded.symmetry.turned(folded, program, folded.symmetry.turn_of(rank)));
  }
  return result;
}

}  // namespace

TEST_CASE("every rank proves its own program of every generator's plans") {
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 64}) {
    each_plan(ranks, {1, 3}, [&](const Generator& generator, const PlanRequest& request) {
      for (Rank self = 0; self < ranks; self += ranks > 16 ? 21 : 1) {
        const auto flaw = verify(*generator.generate(request, self), generator, request);
        CHECK_MESSAGE(!flaw, ranks << " ranks, " << name_of(request.collective) << ": " << flaw.value_or(""));
      }
    });
  }
}

TEST_CASE("a proof by symmetry says of a broken generator what the proof of all programs says") {
  std::mt19937 random(20261122);
  int refused = 0;
  int accepted = 0;
  for (const int ranks : {4, 5, 6, 8}) {
    each_plan(ranks, {1, 2}, [&](const Generator& generator, const PlanRequest& request) {
      const auto good = excerpt(generator, request, generator.symmetry(request), kMostSteps);
      REQUIRE(good);
      if (good->symmetry.turns() == 1) return;
      CHECK(verify(*good, *request.topology) == std::nullopt);
      CHECK(verify(unfolded(*good), *request.topology) == std::nullopt);
      for (int repeat = 0; repeat < 20; ++repeat) {
        Excerpt bad = *good;
        mistake(bad.programs[0], bad, random);
        const auto by_symmetry = verify(bad, *request.topology);
        const auto of_all = verify(unfolded(bad), *request.topology);
        CHECK_MESSAGE(by_symmetry.has_value() == of_all.has_value(),
                      ranks << " ranks, " << name_of(request.collective) << ": by symmetry "
                            << by_symmetry.value_or("right") << ", of all " << of_all.value_or("right"));
        ++(of_all ? refused : accepted);
      }
    });
  }
  MESSAGE(refused << " refused, " << accepted << " were none");
  CHECK(refused > 1000);
}

TEST_CASE("a rank whose program is not what the others believe refuses it") {
  std::mt19937 random(18);
  int refused = 0;
  each_plan(6, {1, 2}, [&](const Generator& generator, const PlanRequest& request) {
    for (Rank self = 0; self < 6; ++self) {
      const Plan good = *generator.generate(request, self);
      Plan bad = good;
      mistake(bad.program, bad, random);
      const bool same = bad.program.channels == good.program.channels;
      CHECK(verify(bad, generator, request).has_value() != same);
      refused += same ? 0 : 1;
    }
  });
  CHECK(refused > 200);
}

TEST_CASE("what is sent in a segment is received in it") {
  const Topology topology{.host_of = {0, 1, 2, 3}};
  const PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology};
  for (const char* name : {"binomial_tree", "double_tree"}) {
    const auto good = excerpt(generator(name), request, Symmetry::none(4), kMostSteps);
    REQUIRE(good);
    CHECK(verify(*good, topology) == std::nullopt);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      for (const int by : {-1, 1}) {
        Excerpt bad = *good;
        bad.programs[rank].segment_ends[0] += static_cast<std::size_t>(by);
        CHECK(verify(bad, topology));
      }
    }
    Excerpt fewer = *good;
    fewer.programs[2].segment_ends.erase(fewer.programs[2].segment_ends.begin());
    CHECK(verify(fewer, topology));
  }
}

TEST_CASE("a wrong symmetry is no proof") {
  // A ring's ranks are no images of each other by exclusive or, and those of a tree not at all.
  const Topology topology{.host_of = std::vector<int>(8, 0)};
  const PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology};
  for (const char* name : {"ring", "binomial_tree", "double_tree"}) {
    const Symmetry wrong = Symmetry::exclusive_or(8).blocks_move();
    const auto claimed = excerpt(generator(name), request, wrong, kMostSteps);
    REQUIRE(claimed);
    int proven = 0;
    for (Rank self = 0; self < 8; ++self) {
      const bool right =
          !verify(*claimed, topology) && !verify_part(*generator(name).generate(request, self), *claimed);
      proven += right ? 1 : 0;
    }
    CHECK(proven < 8);
  }
}

TEST_CASE("what is predicted from representatives is what all ranks' programs take") {
  const CostModel model;
  for (const int ranks : {4, 6, 8, 12, 16, 32, 64}) {
    for (const Topology& topology : topologies(ranks, 2)) {
      for (const std::size_t bytes : {std::size_t{1} << 10, std::size_t{1} << 20, std::size_t{64} << 20}) {
        for (const Collective collective : kCollectives) {
          // Of an alltoall between hosts of several ranks the simulation of all has some ports wait in turn for others,
          // which all ranks at the same pace never do; there is but one plan for it.
          if (collective == Collective::kAlltoall) continue;
          Planner planner(topology, 0, model);
          const Query query{.collective = collective, .bytes = bytes + bytes / 2, .dtype = DType::kFloat32};
          for (const Planner::Candidate& candidate : planner.candidates(query, topology.links, 3, 10)) {
            const Generator& generator = plan::generator(candidate.plan->generator);
            PlanRequest request{.collective = collective, .topology = &topology};
            request.parts = static_cast<int>(candidate.plan->chunks / generator.generate(request, 0)->chunks);
            const auto all = excerpt(generator, request, Symmetry::none(ranks), SIZE_MAX);
            const double seconds =
                predict_seconds(*all, topology, static_cast<double>(query.bytes) / all->chunks, model);
            CHECK_MESSAGE(candidate.seconds == doctest::Approx(seconds).epsilon(0.1),
                          generator.name()
                              << " " << name_of(collective) << ", " << ranks << " ranks on host "
                              << topology.host_of.back() << ", " << bytes << " B, " << request.parts << " parts");
          }
        }
      }
    }
  }
}

TEST_CASE("among many ranks every collective has a plan, also on hosts that differ") {
  for (const int ranks : {1000, 1003}) {
    Topology topology;
    for (Rank rank = 0; rank < ranks; ++rank) topology.host_of.push_back(rank / 8);
    Planner planner(topology, ranks - 1, {});
    for (const Collective collective : kCollectives) {
      const Query query{.collective = collective, .bytes = 1 << 20, .dtype = DType::kFloat32, .root = 5};
      const Plan& plan = planner.choose(query);
      CHECK(plan.self == ranks - 1);
      CHECK(plan.neighbours().size() < static_cast<std::size_t>(ranks));
    }
  }
}

TEST_CASE("a plan goes the way that an uneven network's cables leave") {
  // Two hosts on each of two switches, and a narrow cable between these.
  Topology topology{.host_of = {0, 1, 2, 3}};
  const auto cable = [&](int a, int b, double seconds_per_byte) {
    topology.links.cables.push_back({a, b, 1e-6, seconds_per_byte});
    topology.links.cables.push_back({b, a, 1e-6, seconds_per_byte});
  };
  for (int host = 0; host < 4; ++host) cable(host, host < 2 ? 4 : 5, 1e-9);
  cable(4, 5, 1e-8);
  const CostModel model{.step_s = 0, .touch_seconds_per_byte = 0};
  const auto seconds = [&](const char* name, Collective collective) {
    const PlanRequest request{.collective = collective, .topology = &topology};
    const auto plan = excerpt(generator(name), request, Symmetry::none(4), kMostSteps);
    REQUIRE(plan);
    return predict_seconds(*plan, topology, 4e6 / plan->chunks, model);
  };
  // A ring crosses the narrow cable once each way with each of its 2 (R - 1) blocks.
  CHECK(seconds("ring", Collective::kAllreduce) == doctest::Approx(6 * 1e6 * 1e-8).epsilon(0.02));
  // An exchange of everybody with everybody crosses it with four blocks each way.
  CHECK(seconds("direct", Collective::kAllgather) >= 4 * 1e6 * 1e-8);
}
