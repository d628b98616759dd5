// Allreduces as their users see them: of any size, in any order, fused, in registered memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "engine_fixtures.hpp"

using namespace ringcore;
using namespace ringcore::testing;

TEST_CASE("allreduce of any size, blocking and not, gives the sum on every rank") {
  on_all_clusters([](Cluster& cluster) {
    const float total = static_cast<float>((1 << cluster.ranks()) - 1);
    cluster.run([&](Rank rank) {
      for (const std::size_t count : {0, 1, 2, 3, 5, 1000, 5000, 100003, 700000}) {
        for (const bool blocking : {true, false}) {
          for (int repeat = 0; repeat < 3; ++repeat) {
            std::vector<float> data(count, mark(rank));
            auto operation = allreduce("x" + std::to_string(count), data);
            if (blocking) {
              run(cluster.runtime(rank), operation);
            } else {
              cluster.runtime(rank).submit(operation);
              finish(cluster.runtime(rank), *operation);
            }
            const auto wrong = std::count_if(data.begin(), data.end(), [&](float x) { return x != total; });
            REQUIRE(wrong == 0);
          }
        }
      }
    });
  });
}

TEST_CASE("tensors submitted in different orders are matched by name and fused") {
  on_all_clusters([](Cluster& cluster) {
    const float total = static_cast<float>((1 << cluster.ranks()) - 1);
    cluster.run([&](Rank rank) {
      for (int step = 0; step < 3; ++step) {
        constexpr int kTensors = 40;
        std::vector<std::vector<float>> tensors(kTensors);
        std::vector<std::shared_ptr<Operation>> operations(kTensors);
        for (int i = 0; i < kTensors; ++i) {
          const int t = (i * 7 + rank * 13 * step) % kTensors;
          tensors[t].assign(100 + t * 37, mark(rank) * static_cast<float>(t + 1));
          operations[t] = allreduce("grad" + std::to_string(t), tensors[t]);
          cluster.runtime(rank).submit(operations[t]);
        }
        for (int t = 0; t < kTensors; ++t) {
          finish(cluster.runtime(rank), *operations[t]);
          REQUIRE(tensors[t].front() == total * static_cast<float>(t + 1));
          REQUIRE(tensors[t].back() == total * static_cast<float>(t + 1));
        }
      }
    });
  });
}

TEST_CASE("registered memory is reduced in place") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    constexpr std::size_t kCount = 1 << 20;
    auto* data = reinterpret_cast<float*>(cluster.arena(rank).allocate(kCount * sizeof(float)));
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::fill(data, data + kCount, mark(rank));
      auto operation = make(Collective::kAllreduce, "bucket", {kCount}, DType::kFloat32, data, data);
      cluster.runtime(rank).submit(operation);
      finish(cluster.runtime(rank), *operation);
      REQUIRE(std::count(data, data + kCount, 3.0F) == kCount);
    }
    cluster.arena(rank).release(reinterpret_cast<std::byte*>(data));
  });
}

TEST_CASE("an allreduce from one place in registered memory to another copies nothing, and leaves its input") {
  for (const int ranks : {2, 3}) {
    Cluster cluster({.ranks = ranks, .host_of = {}});
    const float total = static_cast<float>((1 << ranks) - 1);
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      constexpr std::size_t kCount = (1 << 20) + 3;
      const auto allocate = [&] {
        return reinterpret_cast<float*>(cluster.arena(rank).allocate(kCount * sizeof(float)));
      };
      float* const input = allocate();
      float* const output = allocate();
      std::fill(input, input + kCount, mark(rank));
      std::vector<float> elsewhere(kCount, mark(rank));
      // Where some of them lie otherwise, the others see the same.
      enum class Case { kApart, kOneInPlace, kOneElsewhere, kPrescaled };
      for (const Case one : {Case::kApart, Case::kOneInPlace, Case::kOneElsewhere, Case::kPrescaled}) {
        CAPTURE(one);
        const float* from = input;
        if (rank == 1 && one == Case::kOneInPlace) from = std::copy(input, input + kCount, output) - kCount;
        if (rank == 1 && one == Case::kOneElsewhere) from = elsewhere.data();
        auto operation = make(Collective::kAllreduce, "twins", {kCount}, DType::kFloat32, from, output);
        if (one == Case::kPrescaled) operation->descriptor.prescale = 0.5;
        runtime.start_timeline();
        runtime.submit(operation);
        finish(runtime, *operation);
        const std::vector<engine::Span> spans = runtime.stop_timeline();
        // They meet once, at its end: nobody waits until the others have copied.
        const auto meets =
            std::ranges::count_if(spans, [](const engine::Span& span) { return span.activity.starts_with("signal"); });
        const bool reads_inputs = one == Case::kApart || one == Case::kOneInPlace;
        REQUIRE((meets == ranks - 1) == reads_inputs);
        const float expected = one == Case::kPrescaled ? total / 2 : total;
        REQUIRE(std::count(output, output + kCount, expected) == kCount);
        REQUIRE((from != input || std::count(input, input + kCount, mark(rank)) == kCount));
      }
      for (float* const place : {input, output}) cluster.arena(rank).release(reinterpret_cast<std::byte*>(place));
    });
  }
}

TEST_CASE("a group that lies in a row of registered memory is reduced as one tensor") {
  Cluster cluster({.ranks = 3, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    constexpr std::size_t kCounts[] = {30001, 7, 1, 12345};
    auto* row = reinterpret_cast<float*>(cluster.arena(rank).allocate(1 << 20));
    std::vector<float> elsewhere(std::size_t{1} << 18);
    // One by one where a rank's tensors lie elsewhere, and where somebody else may use what lies between them.
    enum class Case { kRow, kElsewhere, kForeignGaps };
    for (const Case one : {Case::kRow, Case::kElsewhere, Case::kForeignGaps}) {
      float* at = one == Case::kElsewhere && rank == 1 ? elsewhere.data() : row;
      std::vector<std::shared_ptr<Operation>> parts;
      for (const std::size_t count : kCounts) {
        std::fill(at, at + count, mark(rank) * static_cast<float>(count));
        at[count] = 0.5F;  // in the gap
        parts.push_back(make(Collective::kAllreduce, "", {count}, DType::kFloat32, at, at));
        at += (count + 15) / 16 * 16;
      }
      const auto group = engine::make_group("row", parts, one != Case::kForeignGaps);
      runtime.start_timeline();
      runtime.submit(group);
      finish(runtime, *group);
      const std::vector<engine::Span> spans = runtime.stop_timeline();
      const auto flat = std::count_if(spans.begin(), spans.end(), [](const engine::Span& span) {
        return span.activity == "flat" && span.name == "row";
      });
      REQUIRE(flat == (one == Case::kRow ? 1 : 0));
      for (const auto& part : parts) {
        const auto* data = reinterpret_cast<const float*>(part->output);
        REQUIRE(std::count(data, data + part->count(), 7.0F * static_cast<float>(part->count())) == part->count());
        REQUIRE((one == Case::kRow || data[part->count()] == 0.5F));
      }
    }
    cluster.arena(rank).release(reinterpret_cast<std::byte*>(row));
  });
}

TEST_CASE("four threads of each rank at once get right results") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          std::vector<float> data(t == 3 ? 20000 : 16, mark(rank) * static_cast<float>(t + 1));
          auto operation = allreduce("thread" + std::to_string(t), data);
          cluster.runtime(rank).run(operation, {}, Runtime::Caller::kUnknown);
          if (operation->error || data.back() != 3.0F * static_cast<float>(t + 1)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  });
}

TEST_CASE("blocking operations whose data does not fit the socket's buffer end") {
  testing::ClusterOptions options{.ranks = 2, .host_of = {0, 1}, .socket_buffer_bytes = 4096};
  options.settings.heartbeat = 2 * kSecond;
  Cluster cluster(options);
  cluster.run([&](Rank rank) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      std::vector<float> data(15'000, mark(rank));
      run(cluster.runtime(rank), allreduce("x", data));
      REQUIRE(std::all_of(data.begin(), data.end(), [](float x) { return x == 3.0F; }));
    }
  });
}
