// Gathers, broadcast, scatters and alltoall as their users see them.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "engine_fixtures.hpp"

using namespace ringcore;
using namespace ringcore::testing;

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

namespace {

// Rank r's part of what one rank has of all: r rows of three elements, or so many more.
std::vector<float> part_of(Rank rank, std::uint64_t more) {
  return std::vector<float>((static_cast<std::uint64_t>(rank) + more) * 3, mark(rank));
}

std::vector<float> parts_of_all(int ranks, std::uint64_t more) {
  std::vector<float> all;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const std::vector<float> part = part_of(rank, more);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::shared_ptr<Operation> rooted(Collective collective, Rank root, const std::vector<float>& data) {
  auto operation = make(collective, "of one", {data.size() / 3, 3}, DType::kFloat32, data.data(), nullptr);
  operation->descriptor.root = root;
  return operation;
}

bool has(const Operation& operation, const std::vector<float>& expected) {
  return operation.result.size() == expected.size() * sizeof(float) &&
         std::equal(expected.begin(), expected.end(), reinterpret_cast<const float*>(operation.result.data()));
}

}  // namespace

TEST_CASE("one rank gathers what all have, and deals out what it has, of any sizes") {
  on_all_clusters([](Cluster& cluster) {
    const int ranks = cluster.ranks();
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      // In their announcements, direct, and along trees.
      for (const std::uint64_t more : {0, 1, 3000, 200'000}) {
        for (Rank root = 0; root < ranks; ++root) {
          const std::vector<float> own = part_of(rank, more);
          const std::vector<float> all = parts_of_all(ranks, more);
          const auto gathered = rooted(Collective::kGather, root, own);
          run(runtime, gathered);
          CHECK(has(*gathered, rank == root ? all : std::vector<float>()));
          for (Rank from = 0; from < ranks; ++from) {
            const std::uint64_t rows = rank == root ? static_cast<std::uint64_t>(from) + more : 0;
            CHECK(gathered->result_rows[static_cast<std::size_t>(from)] == rows);
          }

          // Nobody looks at what others than the root pass.
          const std::vector<float> nothing_of_it(7 * 3, -1);
          const auto dealt = rooted(Collective::kScatter, root, rank == root ? all : nothing_of_it);
          for (Rank to = 0; to < ranks; ++to) dealt->splits.push_back(static_cast<std::uint64_t>(to) + more);
          run(runtime, dealt);
          CHECK(has(*dealt, own));
        }
      }
      // Without splits as much to each, and into the caller's memory.
      const std::vector<float> even(static_cast<std::size_t>(ranks) * 6, mark(1));
      std::vector<float> share(7, -1);
      const engine::Call call{.collective = Collective::kScatter, .name = "even", .root = 1};
      const auto array = [](std::vector<float>& data, std::uint64_t rows) {
        return engine::Array{reinterpret_cast<std::byte*>(data.data()), engine::Shape::of(std::array{rows, 3UL}),
                             DType::kFloat32};
      };
      std::vector<float> given = even;
      const engine::Array output = array(share, 2);
      run(runtime, engine::make_operation(call, array(given, given.size() / 3), &output));
      CHECK(std::count(share.begin(), share.end(), mark(1)) == 6);
      CHECK(share.back() == -1);
      // The root's own rows may lie in its result.
      std::vector<float> place(static_cast<std::size_t>(ranks) * 6 + 1, -1);
      std::fill(place.begin() + 3, place.begin() + 9, mark(rank));
      const engine::Array rows{reinterpret_cast<std::byte*>(place.data() + 3), engine::Shape::of(std::array{2UL, 3UL}),
                               DType::kFloat32};
      const engine::Array all_rows = array(place, static_cast<std::uint64_t>(ranks) * 2);
      const engine::Call gather{.collective = Collective::kGather, .name = "inside", .root = 0};
      run(runtime, engine::make_operation(gather, rows, rank == 0 ? &all_rows : nullptr));
      for (Rank from = 0; from < ranks && rank == 0; ++from) {
        const auto begin = place.begin() + from * 6;
        CHECK(std::count(begin, begin + 6, mark(from)) == 6);
      }
      CHECK(place.back() == -1);
    });
  });
}

TEST_CASE("what does not fit a gather or a scatter is told to all") {
  on_all_clusters([](Cluster& cluster) {
    const auto ranks = static_cast<std::uint64_t>(cluster.ranks());
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      const std::vector<float> rows(ranks * 3, mark(rank));
      for (const Collective collective : {Collective::kGather, Collective::kScatter}) {
        CHECK_THROWS_WITH_AS(run(runtime, rooted(collective, rank == 1 ? 1 : 0, rows)),
                             doctest::Contains("pass the same root_rank"), Error);
        auto operation = rooted(collective, 0, rows);
        if (rank == 1) operation->descriptor.dtype = DType::kInt32;
        CHECK_THROWS_WITH_AS(run(runtime, operation), doctest::Contains("the dtype differs"), Error);
        operation = rooted(collective, 0, rows);
        if (rank == 1) operation->descriptor.shape = engine::Shape::of(std::array{ranks * 3, 1UL});
        CHECK_THROWS_WITH_AS(run(runtime, operation), doctest::Contains("the shape differs"), Error);
        CHECK_THROWS_WITH_AS(run(runtime, rooted(collective, 7, rows)), doctest::Contains("root rank 7"), Error);
      }
      auto scatter = rooted(Collective::kScatter, 1, rows);
      scatter->splits.assign(ranks, 2);
      CHECK_THROWS_WITH_AS(run(runtime, scatter), doctest::Contains("rank 1 gave"), Error);
      std::vector<float> wrong(rows.size() + 3);
      const engine::Call call{.collective = Collective::kGather, .name = "gather", .root = 1};
      const engine::Array own{reinterpret_cast<std::byte*>(const_cast<float*>(rows.data())),
                              engine::Shape::of(std::array{1UL, 3UL}), DType::kFloat32};
      const engine::Array output{reinterpret_cast<std::byte*>(wrong.data()),
                                 engine::Shape::of(std::array{ranks + 1, 3UL}), DType::kFloat32};
      CHECK_THROWS_WITH_AS(run(runtime, engine::make_operation(call, own, rank == 1 ? &output : nullptr)),
                           doctest::Contains("rank 1 gave an output of"), Error);
      // And goes on.
      const auto gathered = rooted(Collective::kGather, 1, rows);
      run(runtime, gathered);
      CHECK(gathered->result.size() == (rank == 1 ? ranks * rows.size() * sizeof(float) : 0));
    });
  });
}
