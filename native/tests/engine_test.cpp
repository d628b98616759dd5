// The engine as its users see it: every collective, several transports, fusion, groups, joins, process sets, errors.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <numeric>

#include "base/reduce.hpp"
#include "cluster.hpp"

using namespace ringcore;
using engine::Operation;
using testing::Cluster;

namespace {

std::shared_ptr<Operation> make(Collective collective, const std::string& name, std::vector<std::uint64_t> shape,
                                DType dtype, const void* input, void* output, ReduceOp op = ReduceOp::kSum) {
  auto operation = std::make_shared<Operation>();
  operation->descriptor.name = name;
  operation->descriptor.collective = collective;
  operation->descriptor.dtype = dtype;
  operation->descriptor.op = op;
  operation->descriptor.shape = engine::Shape::of(shape);
  operation->input = static_cast<const std::byte*>(input);
  operation->output = static_cast<std::byte*>(output);
  return operation;
}

std::shared_ptr<Operation> allreduce(const std::string& name, std::vector<float>& data, ReduceOp op = ReduceOp::kSum) {
  return make(Collective::kAllreduce, name, {data.size()}, DType::kFloat32, data.data(), data.data(), op);
}

std::shared_ptr<Operation> group_of(const std::string& name, std::vector<std::vector<float>>& tensors) {
  std::vector<std::shared_ptr<Operation>> parts;
  for (auto& tensor : tensors) parts.push_back(allreduce("", tensor));
  return engine::make_group(name, std::move(parts));
}

void finish(Runtime& runtime, Operation& operation) {
  REQUIRE(runtime.wait(operation, 30 * kSecond, {}));
  if (operation.error) throw *operation.error;
}

void run(Runtime& runtime, const std::shared_ptr<Operation>& operation) {
  runtime.run(operation, {});
  REQUIRE(operation->done());
  if (operation->error) throw *operation->error;
}

// A different power of two for each rank: a lost or doubled contribution shows whose it was.
float mark(Rank rank) { return static_cast<float>(1 << rank); }

std::vector<testing::ClusterOptions> all_clusters() {
  return {{.ranks = 2, .host_of = {}},
          {.ranks = 4, .host_of = {}},
          {.ranks = 3, .host_of = {0, 1, 2}},
          {.ranks = 4, .host_of = {0, 0, 1, 1}},
          {.ranks = 5, .host_of = {0, 0, 0, 1, 1}}};
}

template <class Body>
void on_all_clusters(Body body) {
  for (const auto& options : all_clusters()) {
    CAPTURE(options.ranks);
    CAPTURE(options.host_of.size());
    Cluster cluster(options);
    body(cluster);
  }
}

}  // namespace

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

TEST_CASE("allgather, broadcast, reducescatter and alltoall") {
  on_all_clusters([](Cluster& cluster) {
    const int ranks = cluster.ranks();
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      // Rank r contributes r rows of 3 (rank 0: none).
      std::vector<std::int64_t> rows(static_cast<std::size_t>(rank) * 3, rank);
      auto gathered =
          make(Collective::kAllgather, "g", {static_cast<std::uint64_t>(rank), 3}, DType::kInt64, rows.data(), nullptr);
      runtime.submit(gathered);
      finish(runtime, *gathered);
      std::vector<std::int64_t> expected;
      for (int r = 0; r < ranks; ++r) expected.insert(expected.end(), static_cast<std::size_t>(r) * 3, r);
      REQUIRE(gathered->result.size() == expected.size() * 8);
      REQUIRE(std::memcmp(gathered->result.data(), expected.data(), gathered->result.size()) == 0);

      for (const std::size_t count : {7, 100000}) {
        for (int root = 0; root < ranks; ++root) {
          std::vector<double> values(count, rank == root ? 42.5 + root : 0.0);
          auto operation = make(Collective::kBroadcast, "b" + std::to_string(root), {count}, DType::kFloat64,
                                values.data(), values.data());
          operation->descriptor.root = root;
          run(runtime, operation);
          REQUIRE(std::count(values.begin(), values.end(), 42.5 + root) == static_cast<long>(count));
        }
      }

      const std::uint64_t all_rows = static_cast<std::uint64_t>(2 * ranks + 1);
      std::vector<float> scatter(all_rows * 4);
      for (std::size_t i = 0; i < scatter.size(); ++i) scatter[i] = static_cast<float>(i) * mark(rank);
      auto scattered = make(Collective::kReduceScatter, "s", {all_rows, 4}, DType::kFloat32, scatter.data(), nullptr);
      runtime.submit(scattered);
      finish(runtime, *scattered);
      const std::size_t first_row = rank == 0 ? 0 : 3 + static_cast<std::size_t>(rank - 1) * 2;
      REQUIRE(scattered->result.size() == (rank == 0 ? 3 : 2) * 16);
      const auto* share = reinterpret_cast<const float*>(scattered->result.data());
      for (std::size_t i = 0; i < scattered->result.size() / 4; ++i) {
        REQUIRE(share[i] == static_cast<float>(first_row * 4 + i) * static_cast<float>((1 << ranks) - 1));
      }

      // Rank r sends d + 1 rows to rank d, each row (r, d).
      std::vector<std::int32_t> outgoing;
      std::vector<std::uint64_t> splits;
      for (int d = 0; d < ranks; ++d) {
        splits.push_back(static_cast<std::uint64_t>(d) + 1);
        for (int i = 0; i <= d; ++i) outgoing.insert(outgoing.end(), {rank, d});
      }
      auto exchanged =
          make(Collective::kAlltoall, "a", {outgoing.size() / 2, 2}, DType::kInt32, outgoing.data(), nullptr);
      exchanged->splits = splits;
      runtime.submit(exchanged);
      finish(runtime, *exchanged);
      const auto* received = reinterpret_cast<const std::int32_t*>(exchanged->result.data());
      REQUIRE(exchanged->result.size() == static_cast<std::size_t>(ranks * (rank + 1) * 8));
      for (int s = 0; s < ranks; ++s) {
        for (int i = 0; i <= rank; ++i) {
          REQUIRE(received[(s * (rank + 1) + i) * 2] == s);
          REQUIRE(received[(s * (rank + 1) + i) * 2 + 1] == rank);
        }
      }
    });
  });
}

TEST_CASE("data of small blocking gathers, scatters and exchanges travels in their announcement") {
  on_all_clusters([](Cluster& cluster) {
    const int ranks = cluster.ranks();
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      const auto r = static_cast<std::size_t>(rank);
      constexpr int kTimes = 5;
      runtime.start_timeline();
      for (int time = 0; time < kTimes; ++time) {
        // Rank r gives r + time rows (r, time): none at first.
        std::vector<std::int32_t> own;
        for (int i = 0; i < rank + time; ++i) own.insert(own.end(), {rank, time});
        const auto gathered = make(Collective::kAllgather, "gather", {r + static_cast<std::size_t>(time), 2},
                                   DType::kInt32, own.data(), nullptr);
        run(runtime, gathered);
        std::vector<std::int32_t> expected;
        for (int s = 0; s < ranks; ++s) {
          CHECK(gathered->result_rows[static_cast<std::size_t>(s)] == static_cast<std::uint64_t>(s + time));
          for (int i = 0; i < s + time; ++i) expected.insert(expected.end(), {s, time});
        }
        REQUIRE(gathered->result.size() == expected.size() * 4);
        CHECK(std::equal(expected.begin(), expected.end(),
                         reinterpret_cast<const std::int32_t*>(gathered->result.data())));

        // One row more than can be dealt out evenly; element e of rank r is e times its mark.
        const auto rows = static_cast<std::uint64_t>(2 * ranks + 1);
        std::vector<float> values(rows * 3);
        for (std::size_t e = 0; e < values.size(); ++e) values[e] = static_cast<float>(e) * mark(rank);
        const auto scattered =
            make(Collective::kReduceScatter, "scatter", {rows, 3}, DType::kFloat32, values.data(), nullptr);
        run(runtime, scattered);
        const std::size_t first = rank == 0 ? 0 : 9 + (r - 1) * 6;
        REQUIRE(scattered->result.size() == (rank == 0 ? 9 : 6) * sizeof(float));
        for (std::size_t e = 0; e < scattered->result.size() / sizeof(float); ++e) {
          const float sum = static_cast<float>(first + e) * static_cast<float>((1 << ranks) - 1);
          CHECK(reinterpret_cast<const float*>(scattered->result.data())[e] == sum);
        }

        // Rank r sends d + time bytes r * 16 + d to rank d.
        std::vector<std::uint8_t> outgoing;
        std::vector<std::uint64_t> splits;
        for (int d = 0; d < ranks; ++d) {
          splits.push_back(static_cast<std::uint64_t>(d + time));
          outgoing.insert(outgoing.end(), splits.back(), static_cast<std::uint8_t>(rank * 16 + d));
        }
        const auto exchanged =
            make(Collective::kAlltoall, "exchange", {outgoing.size()}, DType::kUInt8, outgoing.data(), nullptr);
        exchanged->splits = splits;
        run(runtime, exchanged);
        std::vector<std::uint8_t> incoming;
        for (int s = 0; s < ranks; ++s) {
          incoming.insert(incoming.end(), splits[r], static_cast<std::uint8_t>(s * 16 + rank));
        }
        REQUIRE(exchanged->result.size() == incoming.size());
        CHECK(std::equal(incoming.begin(), incoming.end(),
                         reinterpret_cast<const std::uint8_t*>(exchanged->result.data())));
        CHECK(exchanged->result_rows == std::vector<std::uint64_t>(static_cast<std::size_t>(ranks), splits[r]));
      }
      const std::vector<engine::Span> spans = runtime.stop_timeline();
      for (const char* name : {"gather", "scatter", "exchange"}) {
        CHECK(std::count_if(spans.begin(), spans.end(), [&](const engine::Span& span) {
                return span.activity == "short cut" && span.name == name;
              }) == kTimes);
      }
    });
  });
}

TEST_CASE("ranks of which only one has little to gather still meet, and splits that do not fit are told to all") {
  on_all_clusters([](Cluster& cluster) {
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      for (int time = 0; time < 3; ++time) {
        const std::size_t rows = rank == time ? 5 : 50'000;
        std::vector<float> own(rows, mark(rank));
        const auto gathered = make(Collective::kAllgather, "gather", {rows}, DType::kFloat32, own.data(), nullptr);
        run(runtime, gathered);
        const auto* at = reinterpret_cast<const float*>(gathered->result.data());
        for (int s = 0; s < cluster.ranks(); ++s) {
          const std::size_t theirs = s == time ? 5 : 50'000;
          REQUIRE(std::count(at, at + theirs, mark(s)) == static_cast<long>(theirs));
          at += theirs;
        }
        std::vector<float> rest(4, 1.0F);
        const auto exchanged = make(Collective::kAlltoall, "exchange", {4}, DType::kFloat32, rest.data(), nullptr);
        exchanged->splits.assign(static_cast<std::size_t>(cluster.ranks()), 0);
        exchanged->splits.back() = rank == 1 ? 3 : 4;
        CHECK_THROWS_WITH_AS(run(runtime, exchanged), doctest::Contains("rank 1 gave"), Error);
      }
    });
  });
}

namespace {

std::shared_ptr<Operation> into(Collective collective, const std::string& name, std::vector<std::uint64_t> shape,
                                const std::vector<float>& input, std::vector<std::uint64_t> output_shape,
                                float* output) {
  const engine::Call call{.collective = collective, .name = name, .op = ReduceOp::kSum};
  const engine::Array from{reinterpret_cast<std::byte*>(const_cast<float*>(input.data())), engine::Shape::of(shape),
                           DType::kFloat32};
  const engine::Array to{reinterpret_cast<std::byte*>(output), engine::Shape::of(output_shape), DType::kFloat32};
  return engine::make_operation(call, from, &to);
}

}  // namespace

TEST_CASE("results of gathers, scatters and exchanges go where the caller says, small or large") {
  on_all_clusters([](Cluster& cluster) {
    const auto ranks = static_cast<std::uint64_t>(cluster.ranks());
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      const auto r = static_cast<std::uint64_t>(rank);
      for (const std::uint64_t rows : {0UL, 3UL, 40'000UL}) {
        // Only some ranks say where; of the others the engine finds a place.
        const std::vector<float> own(rows * 2, mark(rank));
        std::vector<float> all(rows * ranks * 2 + 1, -1);
        const auto gathered =
            rank == 1 ? make(Collective::kAllgather, "gather", {rows, 2}, DType::kFloat32, own.data(), nullptr)
                      : into(Collective::kAllgather, "gather", {rows, 2}, own, {rows * ranks, 2}, all.data());
        run(runtime, gathered);
        const float* at = rank == 1 ? reinterpret_cast<const float*>(gathered->result.data()) : all.data();
        for (Rank s = 0; s < cluster.ranks(); ++s, at += rows * 2) {
          REQUIRE(std::count(at, at + rows * 2, mark(s)) == static_cast<long>(rows * 2));
        }
        CHECK(all.back() == -1);

        // In place: this rank's rows lie in the result, at the end of it.
        std::vector<float> place(rows * ranks, 0);
        const auto end = place.end() - static_cast<std::ptrdiff_t>(rows);
        std::fill(end, place.end(), mark(rank));
        const engine::Call call{.collective = Collective::kAllgather, .name = "in place"};
        const engine::Array input{reinterpret_cast<std::byte*>(place.data() + place.size() - rows),
                                  engine::Shape::of(std::array{rows}), DType::kFloat32};
        const engine::Array output{reinterpret_cast<std::byte*>(place.data()),
                                   engine::Shape::of(std::array{rows * ranks}), DType::kFloat32};
        run(runtime, engine::make_operation(call, input, &output));
        for (Rank s = 0; s < cluster.ranks(); ++s) {
          const auto begin = place.begin() + static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(s) * rows);
          REQUIRE(std::count(begin, begin + static_cast<std::ptrdiff_t>(rows), mark(s)) == static_cast<long>(rows));
        }

        const std::vector<float> reduced((rows * ranks + 1) * 2, mark(rank));
        const std::uint64_t share_rows = rows + (rank == 0 ? 1 : 0);
        std::vector<float> share(share_rows * 2 + 1, -1);
        run(runtime,
            into(Collective::kReduceScatter, "scatter", {rows * ranks + 1, 2}, reduced, {share_rows, 2}, share.data()));
        const float sum = static_cast<float>((1 << cluster.ranks()) - 1);
        REQUIRE(std::count(share.begin(), share.end(), sum) == static_cast<long>(share_rows * 2));
        CHECK(share.back() == -1);

        std::vector<float> received(rows * ranks + 1, -1);
        const std::vector<float> sent(rows * ranks, mark(rank));
        run(runtime, into(Collective::kAlltoall, "exchange", {rows * ranks}, sent, {rows * ranks}, received.data()));
        for (std::uint64_t s = 0; s < ranks; ++s) {
          const auto begin = received.begin() + static_cast<std::ptrdiff_t>(s * rows);
          REQUIRE(std::count(begin, begin + static_cast<std::ptrdiff_t>(rows), mark(static_cast<Rank>(s))) ==
                  static_cast<long>(rows));
        }
        CHECK(received.back() == -1);
        CHECK(r < ranks);
      }
    });
  });
}

TEST_CASE(
    "in registered memory ranks fetch rows from where the others have them, and a scatter leaves the rest alone") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    constexpr std::uint64_t kRows = 50'000;
    const auto r = static_cast<std::uint64_t>(rank);
    auto* const all = reinterpret_cast<float*>(cluster.arena(rank).allocate(2 * kRows * sizeof(float)));
    runtime.start_timeline();
    // Another number of rows a rank; the first ones lie in place.
    const std::uint64_t own_rows = kRows - r;
    std::vector<float> own(own_rows, mark(rank));
    run(runtime, into(Collective::kAllgather, "gather", {own_rows}, own, {2 * kRows - 1}, all));
    const float* at = all;
    for (Rank s = 0; s < 2; at += kRows - static_cast<std::uint64_t>(s), ++s) {
      REQUIRE(std::count(at, at + kRows - s, mark(s)) == static_cast<long>(kRows - static_cast<std::uint64_t>(s)));
    }

    std::fill(all, all + 2 * kRows, rank == 1 ? 7.0F : 0.0F);
    auto from_last = make(Collective::kBroadcast, "broadcast", {2 * kRows}, DType::kFloat32, all, all);
    from_last->descriptor.root = 1;
    run(runtime, from_last);
    REQUIRE(std::count(all, all + 2 * kRows, 7.0F) == static_cast<long>(2 * kRows));

    std::fill(all, all + 2 * kRows, mark(rank));
    const engine::Call call{.collective = Collective::kReduceScatter, .name = "scatter", .op = ReduceOp::kSum};
    const engine::Array input{reinterpret_cast<std::byte*>(all), engine::Shape::of(std::array{2 * kRows}),
                              DType::kFloat32};
    const engine::Array share{reinterpret_cast<std::byte*>(all + r * kRows), engine::Shape::of(std::array{kRows}),
                              DType::kFloat32};
    run(runtime, engine::make_operation(call, input, &share));
    for (std::uint64_t s = 0; s < 2; ++s) {
      const float expected = s == r ? 3.0F : mark(rank);
      REQUIRE(std::count(all + s * kRows, all + (s + 1) * kRows, expected) == static_cast<long>(kRows));
    }
    const std::vector<engine::Span> spans = runtime.stop_timeline();
    for (const char* name : {"gather", "broadcast", "scatter"}) {
      CAPTURE(std::string(name));
      CHECK(std::any_of(spans.begin(), spans.end(),
                        [&](const engine::Span& span) { return span.name == name && span.activity == "flat"; }));
    }
  });
}

TEST_CASE("an output that does not fit is told to every rank, and nothing is written") {
  on_all_clusters([](Cluster& cluster) {
    const auto ranks = static_cast<std::uint64_t>(cluster.ranks());
    std::vector<std::string> messages(ranks);
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      for (const std::uint64_t rows : {4UL, 40'000UL}) {
        const std::vector<float> own(rows, mark(rank));
        std::vector<float> all(rows * ranks + 1, -1);
        const std::uint64_t wrong = rows * ranks + (rank == 1 ? 1 : 0);
        CHECK_THROWS_WITH_AS(run(runtime, into(Collective::kAllgather, "gather", {rows}, own, {wrong}, all.data())),
                             doctest::Contains("rank 1 gave an output of"), Error);
        const std::vector<float> sent(rows * ranks, mark(rank));
        const auto exchanged = into(Collective::kAlltoall, "exchange", {rows * ranks}, sent, {wrong}, all.data());
        CHECK_THROWS_WITH_AS(run(runtime, exchanged), doctest::Contains("rank 1 gave an output of"), Error);
        messages[static_cast<std::size_t>(rank)] += exchanged->error->what();
        std::vector<std::shared_ptr<Operation>> parts;
        for (const std::uint64_t more : {std::uint64_t{0}, wrong - rows * ranks}) {
          parts.push_back(into(Collective::kAllgather, "", {rows}, own, {rows * ranks + more}, all.data()));
        }
        CHECK_THROWS_WITH_AS(run(runtime, engine::make_group("group", std::move(parts))),
                             doctest::Contains("'group[1]': rank 1 gave an output of"), Error);
        CHECK(std::count(all.begin(), all.end(), -1.0F) == static_cast<long>(all.size()));
        // What a rank can tell by itself it refuses at once.
        CHECK_THROWS_AS(
            runtime.submit(into(Collective::kReduceScatter, "scatter", {rows}, own, {rows + 1}, all.data())), Error);
        CHECK_THROWS_AS(into(Collective::kAllgather, "dims", {rows}, own, {rows, 1}, all.data()), Error);
        CHECK_THROWS_AS(into(Collective::kAlltoall, "shared", {rows}, own, {rows}, const_cast<float*>(own.data())),
                        Error);
      }
      run(runtime,
          into(Collective::kAllgather, "gather", {1}, {mark(rank)}, {ranks}, std::vector<float>(ranks).data()));
    });
    for (const std::string& message : messages) CHECK(message == messages.front());
  });
}

TEST_CASE("memory of results is used again, and what is kept has a bound") {
  constexpr std::size_t kBytes = 1 << 20;
  Memory::trim();
  std::byte* const first = [] {
    const Memory memory(kBytes);
    return memory.data();
  }();
  CHECK(Memory::kept_bytes() == kBytes);
  {
    const Memory again(kBytes - 100);
    CHECK(again.data() == first);
    CHECK(again.size() == kBytes - 100);
    const Memory small(100);
    CHECK(Memory::kept_bytes() == 0);
  }
  {
    const Memory other(kBytes / 2);  // far too large for it
    CHECK(other.data() != first);
  }
  CHECK(Memory::kept_bytes() <= kBytes + kBytes / 2);
  {
    std::vector<Memory> many;
    for (std::size_t i = 0; i < 40; ++i) many.emplace_back(std::size_t{16} << 20);
  }
  CHECK(Memory::kept_bytes() <= Memory::kMostKept);
  Memory::trim();
  CHECK(Memory::kept_bytes() == 0);
}

TEST_CASE("a mismatch fails on every rank with the same message, and the engine stays usable") {
  on_all_clusters([](Cluster& cluster) {
    std::vector<std::string> messages(cluster.ranks());
    cluster.run([&](Rank rank) {
      std::vector<float> data(rank == 1 ? 5 : 4, 1.0F);
      auto wrong = allreduce("tensor", data);
      try {
        run(cluster.runtime(rank), wrong);
        FAIL("no error");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kMismatch);
        messages[rank] = error.what();
      }
      std::vector<float> right(4, mark(rank));
      run(cluster.runtime(rank), allreduce("tensor", right));
      CHECK(right[0] == static_cast<float>((1 << cluster.ranks()) - 1));
    });
    for (const std::string& message : messages) CHECK(message == messages[0]);
    CHECK(messages[0].find("'tensor'") != std::string::npos);
    CHECK(messages[0].find("rank 1: allreduce sum of float32 [5]") != std::string::npos);
    CHECK(messages[0].find("shape") != std::string::npos);
  });
}

TEST_CASE("blocking calls in opposite order are a deadlock that every rank is told") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    std::vector<float> data(4, 1.0F);
    try {
      run(cluster.runtime(rank), allreduce(rank == 0 ? "a" : "b", data));
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kDeadlock);
    }
    run(cluster.runtime(rank), allreduce("c", data));
    CHECK(data[0] == 2.0F);
  });
}

TEST_CASE("who waits in a barrier while the others wait for something else is met there") {
  Cluster cluster({.ranks = 3, .host_of = {}});
  cluster.run([&](Rank rank) {
    std::vector<float> data(4, 1.0F);
    for (int round = 0; round < 3; ++round) {
      if (rank != round) {
        try {
          run(cluster.runtime(rank), allreduce("a", data));
          FAIL("no error");
        } catch (const Error& error) {
          CHECK(error.kind() == ErrorKind::kDeadlock);
          CHECK(std::string(error.what()).find("in barrier 'b'") != std::string::npos);
        }
      }
      run(cluster.runtime(rank), make(Collective::kBarrier, "b", {0}, DType::kUInt8, nullptr, nullptr));
    }
    run(cluster.runtime(rank), allreduce("c", data));
    CHECK(data[0] == 3.0F);
  });
}

TEST_CASE("joined ranks contribute nothing") {
  on_all_clusters([](Cluster& cluster) {
    std::vector<Rank> last(cluster.ranks(), -2);
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      for (int round = 0; round < 2; ++round) {
        for (int step = 0; step <= rank; ++step) {
          std::vector<float> data(3000, mark(rank));
          run(runtime, allreduce("step", data));
          float expected = 0;
          for (int r = step; r < cluster.ranks(); ++r) expected += mark(r);
          CHECK(data[2999] == expected);
        }
        auto join = std::make_shared<Operation>();
        join->join = true;
        runtime.submit(join);
        finish(runtime, *join);
        last[rank] = join->last_joined;
      }
    });
    for (const Rank rank : last) CHECK(rank == last[0]);
  });
}

TEST_CASE("a bucket that is open when a rank joins takes no tensors that this rank does not have") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    for (int step = 0; step < 20; ++step) {
      std::vector<float> before(10, mark(rank));
      std::vector<float> after(2000, mark(rank));
      const auto first = allreduce("before", before);
      runtime.submit(first);  // nobody waits for it yet
      auto join = std::make_shared<Operation>();
      join->join = true;
      if (rank == 0) {
        const auto second = allreduce("after", after);
        runtime.submit(second);
        finish(runtime, *second);
        CHECK(after[1999] == 1.0F);
      }
      runtime.submit(join);
      finish(runtime, *join);
      finish(runtime, *first);
      CHECK(before[9] == 3.0F);
    }
  });
}

TEST_CASE("a group is released as one, and fails as one") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    for (int step = 0; step < 3; ++step) {
      std::vector<std::vector<float>> tensors(3, std::vector<float>(10, mark(rank)));
      const auto group = group_of("g", tensors);
      runtime.submit(group);
      finish(runtime, *group);
      for (const auto& tensor : tensors) CHECK(tensor[9] == 3.0F);
    }
  });
}

TEST_CASE("groups of gathers and scatters, of mixed dtypes, and of more tensors than one bucket holds") {
  on_all_clusters([](Cluster& cluster) {
    const int ranks = cluster.ranks();
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      // Part i of rank r has r + i rows.
      std::vector<std::vector<std::int64_t>> rows;
      std::vector<std::shared_ptr<Operation>> parts;
      for (int i = 0; i < 3; ++i) rows.emplace_back((rank + i) * 2, 10 * rank + i);
      for (int i = 0; i < 3; ++i) {
        const std::uint64_t count = static_cast<std::uint64_t>(rank + i);
        parts.push_back(make(Collective::kAllgather, "", {count, 2}, DType::kInt64, rows[i].data(), nullptr));
      }
      const auto gathered = engine::make_group("gather", parts);
      runtime.submit(gathered);
      finish(runtime, *gathered);
      for (int i = 0; i < 3; ++i) {
        std::vector<std::int64_t> expected;
        for (int r = 0; r < ranks; ++r)
          expected.insert(expected.end(), static_cast<std::size_t>(r + i) * 2, 10 * r + i);
        const Operation& part = *gathered->parts[i];
        REQUIRE(part.result_rows[ranks - 1] == static_cast<std::uint64_t>(ranks - 1 + i));
        REQUIRE(part.result.size() == expected.size() * 8);
        REQUIRE(std::memcmp(part.result.data(), expected.data(), part.result.size()) == 0);
      }

      parts.clear();
      std::vector<std::vector<float>> scatter(2, std::vector<float>(static_cast<std::size_t>(ranks) * 3, mark(rank)));
      for (auto& tensor : scatter) {
        parts.push_back(make(Collective::kReduceScatter, "", {tensor.size()}, DType::kFloat32, tensor.data(), nullptr));
      }
      const auto scattered = engine::make_group("scatter", parts);
      runtime.submit(scattered);
      finish(runtime, *scattered);
      for (const auto& part : scattered->parts) {
        REQUIRE(part->result.size() == 12);
        REQUIRE(*reinterpret_cast<const float*>(part->result.data()) == static_cast<float>((1 << ranks) - 1));
      }

      parts.clear();
      std::vector<std::vector<float>> floats(300, std::vector<float>(1000, mark(rank)));
      std::vector<std::int32_t> whole(77, 1 << rank);
      for (auto& tensor : floats) parts.push_back(allreduce("", tensor));
      parts.push_back(make(Collective::kAllreduce, "", {77}, DType::kInt32, whole.data(), whole.data()));
      const auto mixed = engine::make_group("mixed", parts);
      runtime.submit(mixed);
      finish(runtime, *mixed);
      for (const auto& tensor : floats) REQUIRE(tensor[999] == static_cast<float>((1 << ranks) - 1));
      REQUIRE(whole[76] == (1 << ranks) - 1);
    });
  });
}

TEST_CASE("process sets run side by side with the world") {
  Cluster cluster({.ranks = 4, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    const auto even = runtime.add_process_set({0, 2});
    const auto odd = runtime.add_process_set({1, 3});
    for (int step = 0; step < 20; ++step) {
      std::vector<float> mine(50000, mark(rank));
      std::vector<float> world(50000, mark(rank));
      auto in_set = allreduce("set", mine);
      in_set->process_set = rank % 2 == 0 ? even : odd;
      auto in_world = allreduce("world", world);
      if ((step + rank) % 2 == 0) {
        runtime.submit(in_set);
        runtime.submit(in_world);
      } else {
        runtime.submit(in_world);
        runtime.submit(in_set);
      }
      finish(runtime, *in_set);
      finish(runtime, *in_world);
      CHECK(mine[49999] == (rank % 2 == 0 ? 5.0F : 10.0F));
      CHECK(world[49999] == 15.0F);
    }
  });
}

TEST_CASE("process sets that only their members add, each rank in an order of its own") {
  constexpr engine::ProcessSetId kAgreed = 8190;  // the pairs have the last three numbers
  Cluster cluster({.ranks = 3, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    const Rank next = (rank + 1) % 3;
    const Rank previous = (rank + 2) % 3;
    std::vector<float> data[2] = {std::vector<float>(5000, mark(rank)), std::vector<float>(5000, mark(rank))};
    std::vector<std::shared_ptr<engine::Operation>> operations;
    for (const Rank peer : {next, previous}) {  // the pair without rank r has the number kAgreed + r
      auto operation = allreduce("pair", data[operations.size()]);
      operation->process_set = runtime.add_process_set({std::min(rank, peer), std::max(rank, peer)},
                                                       static_cast<engine::ProcessSetId>(kAgreed + 3 - rank - peer));
      runtime.submit(operation);
      operations.push_back(std::move(operation));
    }
    for (const auto& operation : operations) finish(runtime, *operation);
    CHECK(data[0][4999] == mark(rank) + mark(next));
    CHECK(data[1][4999] == mark(rank) + mark(previous));
    // Records that come late for a removed set must not be taken for those of a new one.
    runtime.remove_process_set(operations[0]->process_set);
    const auto refused = [&](std::vector<Rank> members, engine::ProcessSetId agreed) -> std::optional<Error> {
      try {
        runtime.add_process_set(std::move(members), agreed);
      } catch (const Error& error) {
        return error;
      }
      return std::nullopt;
    };
    CHECK(refused({0, 1, 2}, kAgreed + previous).value().kind() == ErrorKind::kInvalidArgument);
    CHECK(refused({0, 1, 2}, 0).value().kind() == ErrorKind::kInvalidArgument);
    const Error too_many = refused({0, 1, 2}, kAgreed + 3).value();
    CHECK(too_many.kind() == ErrorKind::kResource);
    CHECK(std::string(too_many.what()).find("a job can have 8192. Remedy: keep") != std::string::npos);
    // Whoever is no member has not used the number up.
    const std::vector<Rank> others = {std::min(next, previous), std::max(next, previous)};
    CHECK(refused(others, 1).value().kind() == ErrorKind::kInvalidArgument);
    CHECK(!refused({0, 1, 2}, 1));
  });
}

// Rank 1 removes a process set without what the others wait for in it, and goes on in the world.
std::string told_of_removal(Cluster& cluster, Rank rank, int uses) {
  Runtime& runtime = cluster.runtime(rank);
  std::vector<Rank> everyone(static_cast<std::size_t>(cluster.ranks()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const engine::ProcessSetId id = runtime.add_process_set(everyone);
  std::vector<float> data(4, 1.0F);
  const auto in_set = [&] {
    auto operation = allreduce("x", data);
    operation->process_set = id;
    return operation;
  };
  for (int use = 0; use < uses; ++use) run(runtime, in_set());
  std::string told;
  if (rank == 1) {
    runtime.remove_process_set(id);
  } else {
    try {
      run(runtime, in_set());
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kMismatch);
      told = error.what();
    }
    runtime.remove_process_set(id);
  }
  run(runtime, allreduce("y", data));
  return told;
}

TEST_CASE("a rank that removes a process set ends what the others wait for in it, and nothing else") {
  on_all_clusters([](Cluster& cluster) {
    for (const int uses : {0, 1, 2}) {
      cluster.run([&](Rank rank) {
        const std::string told = told_of_removal(cluster, rank, uses);
        if (rank == 1) return;
        CAPTURE(told);
        CHECK(told.starts_with("allreduce 'x': rank 1 has removed process set "));
        // Where it was quick, even before the others submitted anything.
        const bool before = told.find("without submitting it") == std::string::npos;
        CHECK((before || (told.find("submitting it again.") != std::string::npos) == (uses > 0)));
        CHECK(told.find("Remedy: let every member run the same operations in it") != std::string::npos);
      });
    }
  });
}

TEST_CASE("who waits in a join for a rank that leaves is told that it has not joined") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    if (rank == 1) return cluster.runtime(rank).leave("");
    auto join = std::make_shared<engine::Operation>();
    join->join = true;
    std::string told;
    try {
      cluster.runtime(rank).submit(join);
      finish(cluster.runtime(rank), *join);
    } catch (const Error& error) {
      told = error.what();
    }
    CAPTURE(told);
    CHECK(told.starts_with("join: rank 1 has left"));
    CHECK(told.find("submit") == std::string::npos);
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
          cluster.runtime(rank).run(operation, {}, /*alone=*/false);
          if (operation->error || data.back() != 3.0F * static_cast<float>(t + 1)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  });
}

TEST_CASE("a rank that leaves fails what needs it, with its reason") {
  on_all_clusters([](Cluster& cluster) {
    cluster.run([&](Rank rank) {
      std::vector<float> data(4, 1.0F);
      run(cluster.runtime(rank), allreduce("first", data));
      if (rank == 1) {
        cluster.runtime(rank).leave("it raised ValueError: no");
        return;
      }
      try {
        run(cluster.runtime(rank), allreduce("second", data));
        FAIL("no error");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kPeerLost);
        CHECK(std::string(error.what()).find("rank 1 has left (it raised ValueError: no)") != std::string::npos);
        CHECK(cluster.runtime(rank).lost_rank() == 1);
      }
    });
  });
}

TEST_CASE("an operation that one rank never submits ends in a timeout on all that did") {
  testing::ClusterOptions options{.ranks = 3, .host_of = {}};
  options.settings.timeout = 300 * kMillisecond;
  options.settings.stall_warning = 100 * kMillisecond;
  Cluster cluster(options);
  std::atomic<int> failed = 0;
  cluster.run([&](Rank rank) {
    if (rank != 2) {
      std::vector<float> data(4, 1.0F);
      try {
        run(cluster.runtime(rank), allreduce("lonely", data));
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kTimeout);
        CHECK(std::string(error.what()).find("rank 2 did not submit it") != std::string::npos);
        ++failed;
      }
    } else {
      REQUIRE(cluster.runtime(rank).wait_for_attention(10 * kSecond));
      CHECK(cluster.runtime(rank).take_attention().stacks_wanted);
      while (failed < 2) std::this_thread::yield();
    }
    std::vector<float> data(4, mark(rank));
    // The late rank's part of the failed operation would fail as well; a new name works everywhere.
    run(cluster.runtime(rank), allreduce("next", data));
    CHECK(data[0] == 7.0F);
  });
}

TEST_CASE("records of a process set that this rank has not added yet wait for it, whole") {
  Cluster cluster({.ranks = 2, .host_of = {0, 1}});
  std::vector<float> data[2] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const auto exchange = [&](Rank rank) {
    auto operation = make(Collective::kAlltoall, "a", {4}, DType::kFloat32, data[rank].data(), nullptr);
    operation->process_set = cluster.runtime(rank).add_process_set({0, 1});
    operation->splits = {1, 3};
    cluster.runtime(rank).submit(operation);
    return operation;
  };
  const auto early = exchange(1);
  // What rank 1 has sent arrives before this, on the same lane.
  cluster.run([&](Rank rank) {
    std::vector<float> one(1, 1.0F);
    run(cluster.runtime(rank), allreduce("order", one));
  });
  const auto late = exchange(0);
  finish(cluster.runtime(0), *late);
  finish(cluster.runtime(1), *early);
  CHECK(late->result_rows == std::vector<std::uint64_t>{1, 1});
  CHECK(early->result_rows == std::vector<std::uint64_t>{3, 3});
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

TEST_CASE("a group fails as a whole, and its names can be used again") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    for (const std::size_t wrong : {0, 1, 2, 3}) {  // 3: none
      std::vector<std::vector<float>> data;
      for (std::size_t i = 0; i < 3; ++i) data.emplace_back(i == wrong && rank == 1 ? 5 : 4, mark(rank));
      const auto group = group_of("g", data);
      cluster.runtime(rank).submit(group);
      REQUIRE(cluster.runtime(rank).wait(*group, 30 * kSecond, {}));
      REQUIRE((group->error != nullptr) == (wrong < 3));
      if (group->error) {
        REQUIRE(group->error->kind() == ErrorKind::kMismatch);
        const std::string part = "'g[" + std::to_string(wrong) + "]' was submitted differently: rank 0: allreduce";
        REQUIRE(std::string(group->error->what()).find(part) == 0);
      } else {
        CHECK(data[2][0] == 3.0F);
      }
    }
  });
}

TEST_CASE("the second try of an operation that a rank does not submit has a deadline as well") {
  testing::ClusterOptions options{.ranks = 2, .host_of = {}};
  options.settings.timeout = 200 * kMillisecond;
  Cluster cluster(options);
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<float> data(4, 1.0F);
    auto operation = allreduce("x", data);
    cluster.runtime(0).submit(operation);
    REQUIRE(cluster.runtime(0).wait(*operation, 10 * kSecond, {}));
    REQUIRE(operation->error != nullptr);
    CHECK(operation->error->kind() == ErrorKind::kTimeout);
  }
}

TEST_CASE("what a leaving rank has announced ends") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::vector<float> data[4] = {{1}, {2}, {3}, {4}};
  std::vector<std::shared_ptr<Operation>> operations;
  for (int i = 0; i < 3; ++i) {
    operations.push_back(allreduce(std::string(1, "abx"[i]), data[i]));
    cluster.runtime(0).submit(operations.back());
  }
  cluster.runtime(1).submit(allreduce("x", data[3]));
  cluster.runtime(1).leave("");
  for (const auto& operation : operations) CHECK(cluster.runtime(0).wait(*operation, 10 * kSecond, {}));
}

TEST_CASE("join and leaving let operations end that are under way on all ranks") {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 2}}) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{4'000'000}}) {
      for (const bool joins : {true, false}) {
        CAPTURE(hosts.back());
        CAPTURE(count);
        CAPTURE(joins);
        Cluster cluster({.ranks = 3, .host_of = hosts});
        cluster.run([&](Rank rank) {
          Runtime& runtime = cluster.runtime(rank);
          const engine::ProcessSetId other = runtime.add_process_set({0, 1, 2});
          std::vector<float> data(count, mark(rank));
          const auto handle = allreduce("x", data);
          runtime.submit(handle);
          if (joins) {
            const auto join = std::make_shared<Operation>();
            join->join = true;
            run(runtime, join);
          } else {
            // In another process set: nobody asks for open buckets to be closed.
            const auto barrier = make(Collective::kBarrier, "submitted", {0}, DType::kUInt8, nullptr, nullptr);
            barrier->process_set = other;
            run(runtime, barrier);
          }
          runtime.leave("");
          REQUIRE(handle->done());
          if (handle->error) throw *handle->error;
          REQUIRE(std::count(data.begin(), data.end(), 7.0F) == static_cast<std::ptrdiff_t>(count));
        });
      }
    }
  }
}

TEST_CASE("what somebody has waited for does not stay in a bucket when it is complete at last") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::vector<float> data[6] = {{1}, {1}, {1}, {1}, {1}, {1}};
  const auto submit = [&](Rank rank, const std::string& name, int index) {
    auto operation = allreduce(name, data[index]);
    cluster.runtime(rank).submit(operation);
    return operation;
  };
  const auto wanted = submit(0, "p", 0);
  CHECK_FALSE(cluster.runtime(0).wait(*wanted, 20 * kMillisecond, {}));
  submit(0, "z", 1);  // its place in the log completes the round of rank 1's "p"
  submit(1, "u", 2);
  submit(1, "v", 3);
  const auto other = submit(1, "p", 4);
  const SteadyClock clock;
  const Nanoseconds deadline = clock.now() + 10 * kSecond;
  // Nobody waits any more: the engines' own threads bring it to its end.
  while (!(wanted->done() && other->done()) && clock.now() < deadline) std::this_thread::yield();
  CHECK(wanted->done());
  CHECK(other->done());
}

TEST_CASE("who is told of an end may submit the next operation, and nobody needs to wait") {
  on_all_clusters([](Cluster& cluster) {
    constexpr int kLength = 50;
    struct Chain {
      Runtime* runtime = nullptr;
      std::vector<float> data;
      int index = 0;
      std::shared_ptr<const Error> error;
      std::promise<void> ended;

      void submit() {
        auto operation = allreduce("link " + std::to_string(index++), data, ReduceOp::kMax);
        operation->awaited = true;
        operation->on_done = [this](const std::shared_ptr<Operation>& done) {
          error = done->error;
          if (error != nullptr || index == kLength) return ended.set_value();
          submit();
        };
        runtime->submit(operation);
      }
    };
    for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
      std::vector<Chain> chains(cluster.ranks());
      for (Rank rank = 0; rank < cluster.ranks(); ++rank) {
        chains[rank].runtime = &cluster.runtime(rank);
        chains[rank].data.assign(count, rank == 0 ? 1.0F : 0.0F);
        chains[rank].submit();
      }
      for (Chain& chain : chains) {
        REQUIRE(chain.ended.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
        if (chain.error != nullptr) throw *chain.error;
        CHECK(chain.data == std::vector<float>(count, 1.0F));
      }
    }
  });
}
