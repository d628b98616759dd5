// What reductions compute, wherever the data lies and however it travels: operations, factors, dtypes, joined ranks.
#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <numeric>

#include "base/reduce.hpp"
#include "cluster.hpp"
#include "sim_job.hpp"

using namespace ringcore;
using engine::Call;
using engine::Operation;
using testing::Cluster;
using testing::SimJob;

namespace {

// A rank's part of one reduction, in place.
struct Part {
  std::string name;
  ReduceOp op{};
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<float> data;
  std::shared_ptr<Operation> operation;

  void make() {
    const Call call{
        .collective = Collective::kAllreduce, .name = name, .op = op, .prescale = prescale, .postscale = postscale};
    const engine::Array array{reinterpret_cast<std::byte*>(data.data()),
                              engine::Shape::of(std::array<std::uint64_t, 1>{data.size()}), DType::kFloat32};
    operation = engine::make_operation(call, array, &array);
  }
};

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

// Neither 0 nor 1 nor an infinity is in between: no identity of another operation goes unnoticed.
float value(Rank rank, ReduceOp op) {
  const float positive = 2.0F + 2.0F * static_cast<float>(rank);
  return op == ReduceOp::kMax ? -positive : positive;
}

float expected(ReduceOp op, const std::vector<Rank>& ranks, int size, double prescale, double postscale) {
  double result = 0;
  for (const Rank rank : ranks) {
    const double scaled = value(rank, op) * prescale;
    if (rank == ranks.front()) {
      result = scaled;
    } else if (op == ReduceOp::kMin) {
      result = std::min(result, scaled);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, scaled);
    } else {
      result = op == ReduceOp::kProduct ? result * scaled : result + scaled;
    }
  }
  return static_cast<float>(op == ReduceOp::kAverage ? result * postscale / size : result * postscale);
}

// Room for slices in the fusion buffer, see Execution::slices.
engine::EngineSettings settings_with_slices() {
  engine::EngineSettings settings = testing::ClusterOptions::small_settings();
  settings.execution.fusion_threshold_bytes = 8 << 20;
  return settings;
}

const std::vector<std::vector<int>> kHosts = {{0, 0}, {0, 0, 0, 0}, {0, 1, 2, 3}, {0, 0, 1, 1}};

}  // namespace

TEST_CASE("reductions of all kinds and factors side by side, in buckets, slices and alone, also beside a joined rank") {
  for (const std::vector<int>& hosts : kHosts) {
    const int size = static_cast<int>(hosts.size());
    Cluster cluster({.ranks = size, .host_of = hosts, .settings = settings_with_slices()});
    for (const int joined : {0, 1}) {  // the first ranks
      std::vector<Rank> contributors(static_cast<std::size_t>(size - joined));
      std::iota(contributors.begin(), contributors.end(), joined);
      cluster.run([&](Rank rank) {
        Runtime& runtime = cluster.runtime(rank);
        if (rank < joined) {
          const auto join = std::make_shared<Operation>();
          join->join = true;
          runtime.run(join, {});
          REQUIRE(join->error == nullptr);
          return;
        }
        std::vector<Part> parts;
        for (const std::size_t count : {5, 700, 70'000, 1'500'000}) {
          for (const double prescale : {1.0, 0.5}) {
            for (const double postscale : {1.0, 4.0}) {
              for (const ReduceOp op : kOps) {
                if (count > 100'000 && postscale != 1.0) continue;
                Part part{.name = std::to_string(parts.size()), .op = op, .prescale = prescale, .postscale = postscale};
                part.data.assign(count, value(rank, op));
                parts.push_back(std::move(part));
              }
            }
          }
        }
        for (Part& part : parts) {
          part.make();
          runtime.submit(part.operation);
        }
        for (Part& part : parts) {
          REQUIRE(runtime.wait(*part.operation, 60 * kSecond, {}));
          if (part.operation->error) throw *part.operation->error;
          const float right = expected(part.op, contributors, size, part.prescale, part.postscale);
          const auto wrong = std::count_if(part.data.begin(), part.data.end(), [&](float x) { return x != right; });
          CAPTURE(name_of(part.op));
          CAPTURE(part.data.size());
          CAPTURE(part.prescale);
          CAPTURE(part.postscale);
          CAPTURE(joined);
          REQUIRE(wrong == 0);
        }
        if (joined == 0) return;
        const auto join = std::make_shared<Operation>();
        join->join = true;
        runtime.run(join, {});
        REQUIRE(join->error == nullptr);
      });
    }
  }
}

TEST_CASE("16-bit floats are rounded once, with both factors") {
  for (const std::vector<int>& hosts : kHosts) {
    const int size = static_cast<int>(hosts.size());
    Cluster cluster({.ranks = size, .host_of = hosts, .settings = settings_with_slices()});
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
        for (const std::size_t count : {std::size_t{3}, std::size_t{50'000}, std::size_t{2'500'000}}) {
          if (count > 100'000 && (op != ReduceOp::kSum || size != 4)) continue;
          // Numbers from 1 to 2, with all their bits in use.
          std::vector<std::vector<std::uint16_t>> inputs(static_cast<std::size_t>(size));
          std::vector<const std::byte*> sources;
          for (int r = 0; r < size; ++r) {
            for (std::size_t i = 0; i < count; ++i) {
              const std::size_t bits = (i * 37 + static_cast<std::size_t>(r) * 11) % 128;
              inputs[r].push_back(static_cast<std::uint16_t>((dtype == DType::kFloat16 ? 0x3c00 : 0x3f80) + bits));
            }
            sources.push_back(reinterpret_cast<const std::byte*>(inputs[r].data()));
          }
          const double prescale = 1.0 / 3;
          const double postscale = 0.7;
          std::vector<std::uint16_t> right(count);
          std::byte* const target[] = {reinterpret_cast<std::byte*>(right.data())};
          const double factor = prescale * (op == ReduceOp::kAverage ? postscale / size : postscale);
          reduce_many(dtype, op, sources, target, count, factor);
          for (const bool blocking : {true, false}) {
            cluster.run([&](Rank rank) {
              std::vector<std::uint16_t> data = inputs[rank];
              const std::string name = std::to_string(count) + std::to_string(blocking);
              const engine::Array array{reinterpret_cast<std::byte*>(data.data()),
                                        engine::Shape::of(std::array<std::uint64_t, 1>{count}), dtype};
              const Call call{Collective::kAllreduce, name, op, 0, prescale, postscale};
              const auto operation = engine::make_operation(call, array, &array);
              if (blocking) {
                cluster.runtime(rank).run(operation, {});
              } else {
                cluster.runtime(rank).submit(operation);
                REQUIRE(cluster.runtime(rank).wait(*operation, 60 * kSecond, {}));
              }
              if (operation->error) throw *operation->error;
              CAPTURE(name_of(dtype));
              CAPTURE(name_of(op));
              CAPTURE(count);
              CAPTURE(blocking);
              REQUIRE(data == right);
            });
          }
        }
      }
    }
  }
}

TEST_CASE("all ranks get the same bits, whatever NaNs meet") {
  for (const std::vector<int>& hosts : kHosts) {
    const int size = static_cast<int>(hosts.size());
    Cluster cluster({.ranks = size, .host_of = hosts});
    for (const std::size_t count : {1, 600, 20'000, 300'000}) {
      for (const bool blocking : {true, false}) {
        std::vector<std::vector<float>> data(static_cast<std::size_t>(size));
        cluster.run([&](Rank rank) {
          const float mine = std::bit_cast<float>(0x7fc00000U | static_cast<std::uint32_t>(rank + 1));
          Part part{.name = std::to_string(count), .op = ReduceOp::kSum, .data = std::vector<float>(count, mine)};
          part.make();
          part.operation->awaited = blocking;
          cluster.runtime(rank).submit(part.operation);
          REQUIRE(cluster.runtime(rank).wait(*part.operation, 60 * kSecond, {}));
          if (part.operation->error) throw *part.operation->error;
          data[rank] = std::move(part.data);
        });
        CAPTURE(count);
        CAPTURE(blocking);
        for (const auto& each : data) REQUIRE(std::memcmp(each.data(), data[0].data(), count * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("a factor that only one rank gives is a mismatch on every rank") {
  Cluster cluster({.ranks = 3, .host_of = {}});
  for (const bool blocking : {true, false}) {
    for (const bool before : {true, false}) {
      for (const bool grouped : {true, false}) {
        cluster.run([&](Rank rank) {
          Part part{.name = "x", .op = ReduceOp::kSum, .data = std::vector<float>(4, 1.0F)};
          (before ? part.prescale : part.postscale) = rank == 1 ? 2.0 : 1.0;
          part.make();
          const auto operation = grouped ? engine::make_group("x", {part.operation}) : part.operation;
          operation->awaited = blocking;
          cluster.runtime(rank).submit(operation);
          REQUIRE(cluster.runtime(rank).wait(*operation, 20 * kSecond, {}));
          REQUIRE(operation->error != nullptr);
          CHECK(operation->error->kind() == ErrorKind::kMismatch);
          const std::string why = operation->error->what();
          const std::string factor = std::string(before ? "pre" : "post") + "scale 2.0";
          CHECK_MESSAGE(why.find("rank 1: allreduce sum of ") != std::string::npos, why);
          CHECK_MESSAGE(why.find(factor) != std::string::npos, why);
          CHECK_MESSAGE(why.find("Remedy: the prescale or postscale factor differs") != std::string::npos, why);
        });
      }
    }
  }
}

TEST_CASE("integers take whole factors, which wrap; others are refused before anybody hears of them") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  const auto make = [](std::vector<std::int32_t>& data, DType dtype, double prescale, double postscale) {
    const engine::Array array{reinterpret_cast<std::byte*>(data.data()),
                              engine::Shape::of(std::array<std::uint64_t, 1>{data.size()}), dtype};
    const std::string name = "x";
    return engine::make_operation({Collective::kAllreduce, name, ReduceOp::kSum, 0, prescale, postscale}, array,
                                  &array);
  };
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    for (const std::size_t count : {std::size_t{4}, std::size_t{100'000}}) {
      std::vector<std::int32_t> data(count, 1'000'000'000 + rank);
      const auto operation = make(data, DType::kInt32, 3.0, -2.0);
      runtime.run(operation, {});
      if (operation->error) throw *operation->error;
      CHECK(data == std::vector<std::int32_t>(count, static_cast<std::int32_t>(-2 * 3 * 2'000'000'001LL)));
      for (const double factor : {0.5, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
        CHECK_THROWS_WITH_AS(runtime.run(make(data, DType::kInt32, factor, 1.0), {}),
                             doctest::Contains("'x': int32 is not multiplied by a prescale_factor of"), Error);
        CHECK_THROWS_WITH_AS(runtime.run(make(data, DType::kInt32, 1.0, factor), {}), doctest::Contains("Remedy:"),
                             Error);
      }
      CHECK_THROWS_WITH_AS(runtime.run(make(data, DType::kBool, 2.0, 1.0), {}), doctest::Contains("bool"), Error);
    }
  });
}

TEST_CASE("averages are averages also of transfers that were set aside") {
  constexpr int kSets = 4;
  SimJob job(2);
  std::vector<Part> parts;
  for (Rank rank = 0; rank < 2; ++rank) {
    for (int set = 1; set < kSets; ++set) job.engine(rank).add_process_set({0, 1});
    for (int i = 0; i < kSets; ++i) {
      // The ranks begin at different ends.
      const int set = rank == 0 ? i : kSets - 1 - i;
      Part part{.name = "x", .op = ReduceOp::kAverage, .data = std::vector<float>(10'000, rank == 0 ? 1.0F : 4.0F)};
      part.make();
      part.operation->process_set = static_cast<engine::ProcessSetId>(set);
      parts.push_back(std::move(part));
      job.submit(rank, parts.back().operation);
      job.engine(rank).wanted(*parts.back().operation, false);
    }
  }
  REQUIRE(job.run_until([&] {
    return std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.operation->done(); });
  }));
  for (const Part& part : parts) {
    REQUIRE_MESSAGE(part.operation->error == nullptr, part.operation->error->what());
    CHECK(part.data == std::vector<float>(10'000, 2.5F));
  }
}

TEST_CASE("why one rank fails is told to all others") {
  SimJob job(3);
  std::vector<float> data(4, 1.0F);
  const auto operation = job.allreduce("x", data);
  job.submit(2, operation);
  const engine::RecordHeader wrong{
      .bytes = sizeof(engine::RecordHeader), .type = engine::RecordType::kHeartbeat, .epoch = 5};
  job.network().inject(1, 0, transport::kControlLane, std::as_bytes(std::span(&wrong, 1)));
  REQUIRE(job.run_until([&] { return operation->done(); }));
  REQUIRE(job.engine(0).failure() != nullptr);
  CHECK(operation->error->kind() == ErrorKind::kProtocol);
  CHECK(std::string(operation->error->what()) == job.engine(0).failure()->what());
  CHECK(std::string(operation->error->what()).find("rank 1: sent a record of epoch 5 in epoch 0") == 0);
}
