// Allreduces of which less is sent: over links, in every plan, fused, and where ranks do not agree.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/quantise.hpp"
#include "engine_fixtures.hpp"
#include "plan/excerpt.hpp"
#include "plan/planner.hpp"
#include "plan/verifier.hpp"
#include "plan_cases.hpp"

using namespace ringcore;
using namespace ringcore::plan;
using namespace ringcore::testing;

namespace {

constexpr Compression kCompressions[] = {Compression::kInt8, Compression::kInt4};

template <class T>
std::shared_ptr<Operation> compressed(Compression compression, const std::string& name, std::vector<T>& data,
                                      ReduceOp op = ReduceOp::kSum) {
  const DType dtype = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;
  auto operation = make(Collective::kAllreduce, name, {data.size()}, dtype, data.data(), data.data(), op);
  operation->descriptor.compression = compression;
  return operation;
}

template <class T>
std::vector<T> values_of(Rank rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::uniform_real_distribution<T> value(-1, 1);
  std::vector<T> values(count);
  for (T& each : values) each = value(random);
  return values;
}

// What is given away is at most half a scale at each of the hops and where the sum is complete; each is at most of as
// many ranks as take part.
double allowed(Compression compression, int ranks) {
  const double most = compression == Compression::kInt8 ? 127 : 7;
  return ranks * ranks * 0.51 / most;
}

std::vector<ClusterOptions> clusters_of_several_hosts() {
  std::vector<ClusterOptions> all;
  for (const ClusterOptions& options : all_clusters()) {
    if (!options.host_of.empty()) all.push_back(options);
  }
  return all;
}

template <class T>
void check_sums(Cluster& cluster, Compression compression, std::size_t count, ReduceOp op) {
  const int ranks = cluster.ranks();
  std::vector<std::vector<T>> data(ranks);
  for (Rank rank = 0; rank < ranks; ++rank) data[rank] = values_of<T>(rank, count);
  std::vector<double> exact(count, 0);
  for (const auto& own : data) {
    for (std::size_t i = 0; i < count; ++i) exact[i] += static_cast<double>(own[i]);
  }
  cluster.run([&](Rank rank) {
    run(cluster.runtime(rank), compressed(compression, "sum" + std::to_string(count), data[rank], op));
  });
  const double divisor = op == ReduceOp::kAverage ? ranks : 1;
  for (std::size_t i = 0; i < count; ++i) {
    REQUIRE(std::abs(static_cast<double>(data[0][i]) - exact[i] / divisor) <= allowed(compression, ranks) / divisor);
  }
  for (const auto& own : data) {
    const bool is_equal = std::ranges::equal(std::as_bytes(std::span(own)), std::as_bytes(std::span(data[0])));
    REQUIRE(is_equal);
  }
}

// A plan as every rank has it, with everybody's programs.
Excerpt whole(const Generator& generator, const PlanRequest& request) {
  return *excerpt(generator, request, Symmetry::none(request.topology->nodes()), SIZE_MAX);
}

}  // namespace

TEST_CASE("compressed sums are near the sum, and the same bits on every rank") {
  for (const ClusterOptions& options : clusters_of_several_hosts()) {
    CAPTURE(options.ranks);
    Cluster cluster(options);
    for (const Compression compression : kCompressions) {
      for (const std::size_t count : {0, 1, 5, 1000, 5000, 100003, 700000}) {
        CAPTURE(count);
        check_sums<float>(cluster, compression, count, ReduceOp::kSum);
      }
      check_sums<double>(cluster, compression, 30001, ReduceOp::kAverage);
    }
  }
}

TEST_CASE("compressed sums are sent in a quarter or an eighth of the bytes") {
  for (const Compression compression : kCompressions) {
    Cluster cluster({.ranks = 3, .host_of = {0, 1, 2}});
    constexpr std::size_t kCount = 300000;
    std::vector<std::vector<float>> data(3, std::vector<float>(kCount, 1.0F));
    cluster.run([&](Rank rank) { run(cluster.runtime(rank), compressed(compression, "sum", data[rank])); });
    std::uint64_t sent = 0;
    for (const auto& [transport, traffic] : cluster.runtime(0).statistics().traffic) sent += traffic.sent;
    const double share = static_cast<double>(sent) / (2.0 / 3 * 2 * kCount * sizeof(float));
    CHECK(share < (compression == Compression::kInt8 ? 0.26 : 0.14));
    CHECK(share > 0);
  }
}

TEST_CASE("compressed tensors are fused with each other, and not with others") {
  Cluster cluster({.ranks = 3, .host_of = {0, 1, 2}});
  cluster.run([&](Rank rank) {
    std::vector<std::vector<float>> tensors;
    std::vector<std::shared_ptr<Operation>> operations;
    tensors.reserve(30);
    for (int i = 0; i < 30; ++i) tensors.emplace_back(500 + i, mark(rank));
    for (int i = 0; i < 30; ++i) {
      const Compression compression = i % 3 == 0 ? Compression::kNone : kCompressions[i % 3 - 1];
      operations.push_back(compressed(compression, "grad" + std::to_string(i), tensors[i]));
      cluster.runtime(rank).submit(operations.back());
    }
    for (int i = 0; i < 30; ++i) {
      finish(cluster.runtime(rank), *operations[i]);
      // Blocks of equal values lose next to nothing; those that share a bucket are equal too.
      REQUIRE(std::abs(tensors[i].front() - 7) < 0.1F);
      REQUIRE((i % 3 != 0 || tensors[i].back() == 7));
    }
  });
}

TEST_CASE("what lies between compressed tensors in a row takes nothing of them with it") {
  Cluster cluster({.ranks = 4, .host_of = {0, 0, 1, 1}});
  cluster.run([&](Rank rank) {
    constexpr std::size_t kCounts[] = {30001, 7, 1, 12345};
    auto* row = reinterpret_cast<float*>(cluster.arena(rank).allocate(1 << 20));
    float* at = row;
    std::vector<std::shared_ptr<Operation>> parts;
    for (const std::size_t count : kCounts) {
      std::fill(at, at + count, mark(rank));
      at[count] = std::numeric_limits<float>::quiet_NaN();
      parts.push_back(make(Collective::kAllreduce, "", {count}, DType::kFloat32, at, at));
      parts.back()->descriptor.compression = Compression::kInt8;
      at += (count + 15) / 16 * 16;
    }
    const auto group = engine::make_group("row", parts, true);
    cluster.runtime(rank).submit(group);
    finish(cluster.runtime(rank), *group);
    for (const auto& part : parts) {
      const auto* data = reinterpret_cast<const float*>(part->output);
      REQUIRE(std::all_of(data, data + part->count(), [](float sum) { return std::abs(sum - 15) < 0.2F; }));
    }
    cluster.arena(rank).release(reinterpret_cast<std::byte*>(row));
  });
}

TEST_CASE("ranks with different compressions, and what cannot be compressed, are told so") {
  Cluster cluster({.ranks = 2, .host_of = {0, 1}});
  cluster.run([&](Rank rank) {
    std::vector<float> data(100, 1.0F);
    auto differing = compressed(rank == 0 ? Compression::kInt8 : Compression::kInt4, "grad", data);
    cluster.runtime(rank).run(differing, {});
    REQUIRE(differing->error != nullptr);
    const std::string what = differing->error->what();
    CHECK(what.find("compression int8") != std::string::npos);
    CHECK(what.find("compression int4") != std::string::npos);
    CHECK(what.find("the compression differs") != std::string::npos);
  });
  cluster.run([&](Rank rank) {
    std::vector<std::int32_t> integers(100, 1);
    auto operation = make(Collective::kAllreduce, "integers", {100}, DType::kInt32, integers.data(), integers.data());
    operation->descriptor.compression = Compression::kInt8;
    CHECK_THROWS_WITH(run(cluster.runtime(rank), operation), doctest::Contains("takes float32 and float64, not int32"));
    std::vector<float> data(100, 1.0F);
    auto largest = compressed(Compression::kInt8, "largest", data, ReduceOp::kMax);
    CHECK_THROWS_WITH(run(cluster.runtime(rank), largest), doctest::Contains("for sums and averages"));
  });
}

TEST_CASE("inside a host, and where results are deterministic, nothing is quantised") {
  engine::EngineSettings deterministic = ClusterOptions::small_settings();
  deterministic.execution.deterministic = true;
  for (const ClusterOptions& options : {ClusterOptions{.ranks = 2, .host_of = {}},
                                        ClusterOptions{.ranks = 2, .host_of = {0, 1}, .settings = deterministic}}) {
    Cluster cluster(options);
    std::vector<std::vector<float>> data = {values_of<float>(0, 5000), values_of<float>(1, 5000)};
    std::vector<float> exact(5000);
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] = data[0][i] + data[1][i];
    cluster.run([&](Rank rank) { run(cluster.runtime(rank), compressed(Compression::kInt8, "sum", data[rank])); });
    CHECK(data[0] == exact);
  }
}

TEST_CASE("the verifier accepts every generator's compressed plans for 2 to 17 ranks") {
  for (int ranks = 2; ranks <= 17; ++ranks) {
    for (const Topology& topology : topologies(ranks, 3)) {
      int offered = 0;
      for (const Generator* generator : generators()) {
        if (generator->serves()) continue;
        for (const int parts : {1, 2}) {
          const PlanRequest request{.collective = Collective::kAllreduce,
                                    .topology = &topology,
                                    .parts = parts,
                                    .compression = Compression::kInt8};
          auto plan = generator->generate(request, 0);
          if (!plan) continue;
          ++offered;
          CAPTURE(ranks);
          const auto flaw = verify(*plan, *generator, request);
          CHECK_MESSAGE(!flaw, generator->name() << ": " << flaw.value_or(""));
        }
      }
      CHECK(offered > 0);
    }
  }
}

TEST_CASE("hierarchical plans quantise between hosts, and nothing inside one") {
  const Topology topology{.host_of = {0, 0, 1, 1, 2, 2}};
  const PlanRequest request{
      .collective = Collective::kAllreduce, .topology = &topology, .compression = Compression::kInt8};
  int quantised = 0;
  int whole_transfers = 0;
  const Excerpt plan = whole(generator("hierarchical"), request);
  for (Rank rank = 0; rank < topology.ranks(); ++rank) {
    for (const Channel& channel : plan.programs[static_cast<std::size_t>(rank)].channels) {
      for (const Step& step : channel) {
        if (step.peer < 0 || step.kind == StepKind::kSignal || step.kind == StepKind::kWait) continue;
        REQUIRE(step.quantised == (topology.host_of[step.peer] != topology.host_of[rank]));
        ++(step.quantised ? quantised : whole_transfers);
      }
    }
  }
  CHECK(quantised > 0);
  CHECK(whole_transfers > 0);
}

TEST_CASE("the verifier refuses quantised transfers that do not meet, and sums that are completed twice") {
  const Topology topology{.host_of = {0, 1, 2, 3}};
  PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology, .compression = Compression::kInt8};
  Excerpt plan = whole(generator("ring"), request);
  REQUIRE(!verify(plan, topology));
  plan.programs[1].channels[0][0].quantised = false;
  CHECK(verify(plan, topology).value_or("").find("one side quantises") != std::string::npos);
  request.compression = Compression::kNone;
  Excerpt doubling = whole(generator("recursive_doubling"), request);
  REQUIRE(!verify(doubling, topology));
  doubling.compression = Compression::kInt8;
  CHECK(verify(doubling, topology).value_or("").find("ranks would have different bits") != std::string::npos);
  Excerpt gather = whole(generator("ring"), {.collective = Collective::kAllgather, .topology = &topology});
  gather.compression = Compression::kInt8;
  CHECK(verify(gather, topology).value_or("").find("only sums") != std::string::npos);
  Excerpt plain = whole(generator("ring"), request);
  plain.programs[0].channels[0][0].quantised = true;
  CHECK(verify(plain, topology).value_or("").find("nothing to quantise") != std::string::npos);
}

TEST_CASE("the planner reckons with what compressed plans send") {
  Topology topology;
  for (Rank rank = 0; rank < 8; ++rank) topology.host_of.push_back(rank);
  Planner planner(topology, 0, {});
  Query query{.collective = Collective::kAllreduce, .bytes = 64 << 20, .dtype = DType::kFloat32};
  const double plain = planner.forecast(query, {"ring"}).front().seconds;
  query.compression = Compression::kInt8;
  const double less = planner.forecast(query, {"ring"}).front().seconds;
  CHECK(less < plain / 3);
  CHECK(planner.choose(query).compression == Compression::kInt8);
  query.compression = Compression::kNone;
  CHECK(planner.choose(query).compression == Compression::kNone);
}
