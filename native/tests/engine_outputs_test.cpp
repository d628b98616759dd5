// Results that go to memory which the caller has given.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine_fixtures.hpp"

using namespace ringcore;
using namespace ringcore::testing;

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
    // Rank r gives itself r rows more than the other; what comes goes to ordinary memory.
    const std::uint64_t half = kRows / 2;
    for (std::uint64_t i = 0; i < kRows; ++i) all[i] = static_cast<float>(i) * mark(rank);
    auto exchanged = make(Collective::kAlltoall, "exchange", {kRows}, DType::kFloat32, all, nullptr);
    exchanged->splits = {rank == 0 ? half : half - 1, rank == 0 ? half : half + 1};
    run(runtime, exchanged);
    const std::uint64_t first[] = {rank == 0 ? 0 : half, rank == 0 ? 0 : half - 1};
    REQUIRE(exchanged->result_rows == std::vector{half, rank == 0 ? half - 1 : half + 1});
    const auto* received = reinterpret_cast<const float*>(exchanged->result.data());
    for (Rank s = 0; s < 2; ++s) {
      for (std::uint64_t i = 0; i < exchanged->result_rows[static_cast<std::size_t>(s)]; ++i) {
        REQUIRE(*received++ == static_cast<float>(first[s] + i) * mark(s));
      }
    }
    const std::vector<engine::Span> spans = runtime.stop_timeline();
    for (const char* name : {"gather", "broadcast", "scatter", "exchange"}) {
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
