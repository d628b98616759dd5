// Plans: every generator's are proved right, broken ones are refused, and the cost model agrees with closed forms.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "plan/builder.hpp"
#include "plan/cost.hpp"
#include "plan/generator.hpp"
#include "plan/layout.hpp"
#include "plan/planner.hpp"
#include "plan/verifier.hpp"
#include "plan_cases.hpp"

using namespace ringcore;
using namespace ringcore::plan;
using testing::kCollectives;
using testing::topologies;

namespace {

Excerpt whole(const Generator& generator, const PlanRequest& request) {
  const auto plan = excerpt(generator, request, Symmetry::none(request.topology->nodes()), SIZE_MAX);
  REQUIRE(plan);
  return *plan;
}

// All ranks' programs of every plan.
std::vector<Excerpt> all_plans(int ranks, const Topology& topology, const std::vector<int>& parts_to_try) {
  std::vector<Excerpt> plans;
  for (const Generator* generator : generators()) {
    for (const Collective collective : kCollectives) {
      for (const int parts : parts_to_try) {
        for (const bool inputs_ready : {false, true}) {
          PlanRequest request{.collective = collective, .topology = &topology, .root = ranks / 2, .parts = parts};
          request.memory_visible = topology.single_host();
          request.inputs_ready = inputs_ready;
          if (generator->generate(request, 0)) plans.push_back(whole(*generator, request));
        }
      }
    }
  }
  return plans;
}

}  // namespace

TEST_CASE("the verifier accepts every generator's plans for 2 to 33 ranks") {
  for (int ranks = 2; ranks <= 33; ++ranks) {
    for (const Topology& topology : topologies(ranks, 3)) {
      for (const Excerpt& plan : all_plans(ranks, topology, ranks < 10 ? std::vector{1, 2, 3, 8} : std::vector{1, 2})) {
        CAPTURE(ranks);
        const auto flaw = verify(plan, topology);
        CHECK_MESSAGE(!flaw, plan.generator << " " << name_of(plan.collective) << ": " << flaw.value_or(""));
      }
    }
  }
}

TEST_CASE("every collective has a plan for every number of ranks") {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    for (const Topology& topology : topologies(ranks, 3)) {
      Planner planner(topology, 0, {});
      for (const Collective collective : kCollectives) {
        for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{1} << 20, std::size_t{1} << 28}) {
          const Plan& plan = planner.choose({.collective = collective, .bytes = bytes, .dtype = DType::kBFloat16});
          CHECK(plan.ranks == ranks);
          CHECK((!reduces(collective) || ranks == 2 || plan.accumulates_once));
        }
      }
    }
  }
}

namespace {

// A step of a plan, by where it stands.
struct Place {
  Rank rank;
  std::size_t channel;
  std::size_t step;
};

std::vector<Place> places(const Excerpt& plan) {
  std::vector<Place> all;
  for (Rank rank = 0; rank < plan.ranks; ++rank) {
    for (std::size_t c = 0; c < plan.programs[rank].channels.size(); ++c) {
      for (std::size_t s = 0; s < plan.programs[rank].channels[c].size(); ++s) all.push_back({rank, c, s});
    }
  }
  return all;
}

bool same(const Step& a, const Step& b) {
  return a.kind == b.kind && a.peer == b.peer && a.sources == b.sources && a.targets == b.targets && a.final == b.final;
}

bool touches(const Step& a, const Step& b) {
  for (const auto* refs : {&b.sources, &b.targets}) {
    for (const ChunkRef& ref : *refs) {
      if (std::find(a.targets.begin(), a.targets.end(), ref) != a.targets.end()) return true;
    }
  }
  return false;
}

// Whether swapping two neighbouring steps of a channel leaves the plan as good as before: they use different streams and
// no chunk that one writes concerns the other.
bool commute(const Step& a, const Step& b) {
  // Two contributions to one chunk may come in either order.
  if (a.kind == StepKind::kRecvReduce && b.kind == StepKind::kRecvReduce && a.targets == b.targets &&
      a.peer != b.peer && a.final == b.final) {
    return true;
  }
  const bool streams = a.kind != StepKind::kReduce && b.kind != StepKind::kReduce && a.peer == b.peer &&
                       (a.kind == StepKind::kSend || a.kind == StepKind::kSignal) ==
                           (b.kind == StepKind::kSend || b.kind == StepKind::kSignal);
  // A signal tells its peer that everything before it has happened, a wait lets everything after it happen: neither
  // orders a copy that has nothing to do with that peer. (An all-gather's copies write what no peer reads.)
  const auto orders = [](const Step& step) { return step.kind == StepKind::kSignal || step.kind == StepKind::kWait; };
  const auto concerns = [](const Step& step, Rank peer) {
    const auto of_peer = [peer](const ChunkRef& ref) { return ref.rank == peer; };
    return step.kind != StepKind::kReduce || step.targets.size() > 1 || step.sources.size() > 1 ||
           std::any_of(step.sources.begin(), step.sources.end(), of_peer);
  };
  const bool one_is_barrier =
      (orders(a) && !orders(b) && concerns(b, a.peer)) || (orders(b) && !orders(a) && concerns(a, b.peer));
  return !streams && !one_is_barrier && !touches(a, b) && !touches(b, a);
}

}  // namespace

TEST_CASE("the verifier refuses plans with one planted mistake") {
  std::mt19937 random(20260101);
  int planted = 0;
  int missed = 0;
  for (const int ranks : {2, 3, 4, 5, 8}) {
    for (const Topology& topology : topologies(ranks, 3)) {
      for (const Excerpt& good : all_plans(ranks, topology, {1, 2})) {
        const std::vector<Place> all = places(good);
        for (int repeat = 0; repeat < 12; ++repeat) {
          Excerpt plan = good;
          const Place at = all[random() % all.size()];
          Channel& channel = plan.programs[at.rank].channels[at.channel];
          Step& step = channel[at.step];
          const char* mistake = "";
          switch (repeat % 6) {
            case 0:
              mistake = "a step dropped";
              channel.erase(channel.begin() + static_cast<std::ptrdiff_t>(at.step));
              break;
            case 1: {
              mistake = "two steps swapped";
              if (at.step + 1 >= channel.size() || commute(step, channel[at.step + 1])) continue;
              if (same(step, channel[at.step + 1])) continue;
              std::swap(step, channel[at.step + 1]);
              break;
            }
            case 2:
              mistake = "a step doubled";
              // Copying a chunk a second time changes nothing.
              if (step.kind == StepKind::kReduce && step.sources.size() == 1) continue;
              channel.insert(channel.begin() + static_cast<std::ptrdiff_t>(at.step), Step(step));
              break;
            case 3:
              mistake = "another peer";
              if (step.peer < 0 || ranks == 2) continue;
              do {
                step.peer = static_cast<Rank>(random() % static_cast<unsigned>(ranks));
              } while (step.peer == good.programs[at.rank].channels[at.channel][at.step].peer || step.peer == at.rank);
              break;
            case 4: {
              mistake = "another chunk";
              auto& refs = !step.targets.empty() ? step.targets : step.sources;
              if (refs.empty() || plan.chunks < 2) continue;
              ChunkRef& ref = refs[random() % refs.size()];
              if (ref.buffer == Buffer::kScratch) continue;
              ref.chunk = (ref.chunk + 1) % plan.chunks;
              break;
            }
            case 5:
              mistake = "the final mark flipped";
              if (step.kind != StepKind::kReduce && step.kind != StepKind::kRecvReduce) continue;
              step.final = !step.final;
              break;
          }
          ++planted;
          if (!verify(plan, topology)) {
            ++missed;
            MESSAGE("missed: " << std::string(mistake) << " in " << good.generator << " " << name_of(good.collective)
                               << ", " << ranks << " ranks, rank " << at.rank << ", step " << at.step << " kind "
                               << static_cast<int>(good.programs[at.rank].channels[at.channel][at.step].kind));
          }
        }
      }
    }
  }
  MESSAGE(planted << " mistakes planted");
  CHECK(planted > 2000);
  CHECK(missed == 0);
}

namespace {

// Writes all ranks' programs of a plan.
class Builders {
 public:
  Builders(const PlanRequest& request, std::uint32_t chunks) {
    for (Rank rank = 0; rank < request.ranks(); ++rank) ranks_.emplace_back("test", request, rank, chunks);
    header().one_sided = true;
  }
  Header& header() { return ranks_[0].plan(); }
  Builder& operator[](Rank rank) { return ranks_[rank]; }
  Excerpt plan() {
    Excerpt result;
    static_cast<Header&>(result) = header();
    result.symmetry = Symmetry::none(header().ranks);
    for (Builder& builder : ranks_) result.programs.push_back(builder.plan().program);
    return result;
  }

 private:
  std::vector<Builder> ranks_;
};

}  // namespace

TEST_CASE("the verifier refuses a one-sided write that overtakes a posted transfer") {
  // Rank 1 writes its chunk into rank 0's memory, which rank 0 sends to rank 2, and then writes it once more.
  const Topology topology{.host_of = {0, 0, 0}};
  const PlanRequest request{.collective = Collective::kBroadcast, .topology = &topology, .root = 1};
  const auto written_again_after = [&](Rank told_by) {
    Builders builder(request, 1);
    const ChunkRef own{1, Buffer::kData, 0};
    const ChunkRef remote{0, Buffer::kData, 0};
    builder[0].signal(1);
    builder[0].wait(1);
    builder[0].send(2, 0);
    builder[2].recv(0, 0);
    builder[told_by].signal(1);
    builder[1].wait(0);
    builder[1].reduce({own}, {remote}, false);
    builder[1].signal(0);
    builder[1].wait(told_by);
    builder[1].reduce({own}, {remote}, false);
    builder[1].signal(0);
    builder[0].wait(1);
    return verify(builder.plan(), topology);
  };
  // Who takes the transfer knows that it was sent.
  CHECK(written_again_after(2) == std::nullopt);
  // Who has posted it does not.
  const auto flaw = written_again_after(0);
  REQUIRE(flaw);
  CHECK(flaw->find("rank 1, channel 0, step 4: it writes another rank's memory that may still have to be sent") !=
        std::string::npos);
}

TEST_CASE("the verifier says which rule a plan breaks") {
  const Topology topology{.host_of = {0, 0}};
  const PlanRequest sum{.collective = Collective::kAllreduce, .topology = &topology};
  const PlanRequest copy{.collective = Collective::kBroadcast, .topology = &topology};
  const auto refusal = [&](const PlanRequest& request, std::uint32_t chunks, const auto& write) {
    Builders builders(request, chunks);
    write(builders);
    return verify(builders.plan(), topology).value_or("accepted");
  };
  const auto data = [](Rank rank, std::uint32_t chunk) { return ChunkRef{rank, Buffer::kData, chunk}; };
  const auto says = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
  CHECK(says(refusal(copy, 1, [](Builders& b) { b[0].send(1, 0), b[1].wait(0); }), "a signal meets a transfer"));
  CHECK(says(refusal(copy, 2, [](Builders& b) { b[0].send(1, 0), b[1].recv(0, 1); }), "the peer sends another chunk"));
  CHECK(says(refusal(copy, 2, [](Builders& b) { b[0].send(1, 0), b[0].use_channel(1), b[0].send(1, 1); }),
             "is used by two channels"));
  CHECK(says(refusal(copy, 1, [](Builders& b) { b[0].send(1, 0), b[1].recv(0, 0), b[1].send(0, 0), b[0].recv(1, 0); }),
             "it writes the root's data"));
  const PlanRequest gather{.collective = Collective::kAllgather, .topology = &topology};
  CHECK(
      says(refusal(gather, 2, [](Builders& b) { b[0].send(1, 0), b[1].recv(0, 0), b[1].send(0, 0), b[0].recv(1, 0); }),
           "it writes a rank's own block"));
  CHECK(says(refusal(sum, 2, [&](Builders& b) { b[0].reduce({data(0, 0), data(0, 1)}, {data(0, 0)}, false); }),
             "it adds different chunks"));
  CHECK(says(refusal(sum, 1, [&](Builders& b) { b[0].reduce({data(0, 0), data(0, 0)}, {data(0, 0)}, false); }),
             "the contribution of rank 0 is added twice"));
  CHECK(says(refusal(sum, 1,
                     [](Builders& b) {
                       b.header().accumulates_once = true;
                       b[0].send(1, 0), b[1].recv_reduce(0, 0, true);
                     }),
             "it accumulates in several steps"));
  CHECK(says(refusal(sum, 1,
                     [&](Builders& b) {
                       b.header().accumulates_once = true;
                       b[1].signal(0), b[0].wait(1);
                       b[0].reduce({data(1, 0), data(0, 0)}, {data(0, 0)}, true);
                     }),
             "it does not add all ranks in their order at once"));
  CHECK(says(refusal(sum, 1,
                     [&](Builders& b) {
                       b.header().inputs_ready = true;
                       b[0].reduce({data(0, 0), data(1, 0)}, {data(0, 0)}, true);
                       b[1].reduce({data(1, 0)}, {data(1, 0)}, false);
                     }),
             "it writes memory that may still be read"));
  CHECK(says(refusal(copy, 1,
                     [&](Builders& b) {
                       b.header().inputs_ready = true;
                       b[0].send(1, 0), b[1].recv(0, 0);
                       b[0].reduce({data(0, 0)}, {data(1, 0)}, false);
                     }),
             "it writes memory that may still be written"));
}

TEST_CASE("deterministic sums are made at once, whatever the size") {
  Planner planner({.host_of = {0, 1, 2}}, 0, {});
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{64} << 20}) {
    Query query{.collective = Collective::kAllreduce, .bytes = bytes, .dtype = DType::kFloat32};
    query.deterministic = true;
    CHECK(planner.choose(query).accumulates_once);
  }
}

TEST_CASE("the verifier waits with a rank's own write until a posted transfer is sent") {
  // The same by a receive of the chunk's own rank, which the executor holds back.
  const Topology topology{.host_of = {0, 0, 0}};
  const PlanRequest request{.collective = Collective::kBroadcast, .topology = &topology, .root = 1};
  Builders builder(request, 1);
  for (int time = 0; time < 2; ++time) {
    builder[1].send(0, 0);
    builder[0].recv(1, 0);
    if (time == 0) builder[0].send(2, 0);
  }
  builder[2].recv(0, 0);
  CHECK(verify(builder.plan(), topology) == std::nullopt);
}

TEST_CASE("a ring sends 2 (R - 1) / R of the data, and takes the time of its closed form") {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    Topology topology;
    for (Rank rank = 0; rank < ranks; ++rank) topology.host_of.push_back(rank);
    topology.links.between_hosts = {.latency_s = 1e-3, .seconds_per_byte = 1e-6};
    const Excerpt plan = whole(generator("ring"), {.collective = Collective::kAllreduce, .topology = &topology});
    for (const Program& program : plan.programs) {
      const auto sends = std::count_if(program.channels[0].begin(), program.channels[0].end(),
                                       [](const Step& step) { return step.kind == StepKind::kSend; });
      CHECK(sends == 2 * (ranks - 1));
    }
    const CostModel model{.step_s = 0, .touch_seconds_per_byte = 0};
    const double bytes = 1 << 20;
    const double closed = 2 * (ranks - 1) * 1e-3 + 2.0 * (ranks - 1) / ranks * bytes * 1e-6;
    CHECK(predict_seconds(plan, topology, bytes / plan.chunks, model) == doctest::Approx(closed));
  }
}

TEST_CASE("among many hosts messages cost time: small data does not go from everybody to everybody") {
  for (const auto& [hosts, bytes] : {std::pair{16, 4 << 10}, {32, 4 << 10}, {32, 16 << 10}, {64, 32 << 10}}) {
    Topology topology;
    for (Rank rank = 0; rank < hosts; ++rank) topology.host_of.push_back(rank);
    Planner planner(topology, 0, {});
    const Query query{
        .collective = Collective::kAllreduce, .bytes = static_cast<std::size_t>(bytes), .dtype = DType::kFloat32};
    CHECK(planner.choose(query).generator == "recursive_doubling");
  }
}

TEST_CASE("a hierarchical plan hides most of what the ranks of a host exchange behind the network") {
  const CostModel model{.step_s = 0, .touch_seconds_per_byte = 0};
  constexpr int kParts = 16;
  constexpr std::size_t kBytes = 64 << 20;
  for (const int hosts : {2, 3, 4}) {
    for (const int local : {2, 4}) {
      Topology topology;
      for (Rank rank = 0; rank < hosts * local; ++rank) topology.host_of.push_back(rank / local);
      topology.links = {.in_host = {.latency_s = 0, .seconds_per_byte = 1e-9},
                        .between_hosts = {.latency_s = 0, .seconds_per_byte = 4e-9}};
      const Excerpt plan = whole(generator("hierarchical"),
                                 {.collective = Collective::kAllreduce, .topology = &topology, .parts = kParts});
      const double network = 2.0 * (hosts - 1) / hosts * kBytes * 4e-9;
      const double in_host = 2.0 * (local - 1) / local * kBytes * 1e-9;
      const double predicted = predict_seconds(plan, topology, static_cast<double>(kBytes) / plan.chunks, model);
      CHECK(predicted > network);
      CHECK(predicted < network + in_host / 2);
    }
  }
}

TEST_CASE("a layout covers every element once, in order") {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1000},
                                  std::size_t{100003}, (std::size_t{1} << 31) + 16}) {
    for (const std::uint32_t chunks : {1U, 2U, 3U, 7U, 64U}) {
      const Layout layout = Layout::even(count, chunks);
      std::size_t next = 0;
      std::size_t smallest = count;
      for (std::uint32_t c = 0; c < chunks; ++c) {
        CHECK(layout.offset(c) == next);
        next += layout.size(c);
        smallest = std::min(smallest, layout.size(c));
      }
      CHECK(next == count);
      // One unit of 64 elements more, and the last chunk may lack up to 63.
      CHECK(layout.largest() - smallest < 128);
    }
  }
  const std::uint64_t blocks[] = {3, 0, 10};
  const Layout uneven = Layout::blocks(blocks, 2);
  CHECK(uneven.size(0) + uneven.size(1) == 3);
  CHECK(uneven.size(2) + uneven.size(3) == 0);
  CHECK(uneven.offset(4) == 3);
  CHECK(uneven.size(4) + uneven.size(5) == 10);
}
