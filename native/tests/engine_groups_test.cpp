// Groups of tensors: released as one, and failing as one.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine_fixtures.hpp"

using namespace ringcore;
using namespace ringcore::testing;

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

TEST_CASE("of groups that differ, and what is none between them, the latter is told") {
  Cluster cluster({.ranks = 3, .host_of = {}});
  cluster.run([&](Rank rank) {
    const engine::Call call{.collective = Collective::kAllgather, .name = "g"};
    std::vector<std::vector<float>> data(2, std::vector<float>(12, 1.0F));
    const auto part = [&](std::size_t i, std::uint64_t columns) {
      const std::array<std::uint64_t, 2> extent = {3, columns};
      const engine::Array array{reinterpret_cast<std::byte*>(data[i].data()), engine::Shape::of(extent),
                                DType::kFloat32};
      return engine::make_operation(call, array, nullptr);
    };
    const auto operation = rank == 1 ? part(0, 2) : engine::make_group("g", {part(0, 2), part(1, rank == 2 ? 4 : 2)});
    cluster.runtime(rank).submit(operation);
    REQUIRE(cluster.runtime(rank).wait(*operation, 20 * kSecond, {}));
    REQUIRE(operation->error != nullptr);
    const std::string why = operation->error->what();
    CHECK_MESSAGE(why.find("rank 1: allgather of float32 [3, 2]") != std::string::npos, why);
    CHECK_MESSAGE(why.find("the number of tensors in the group differs") != std::string::npos, why);
  });
}

namespace {

// Whether a group is renewed, now or when nothing else holds the engine or the group any more.
bool comes_to_be_renewed(Runtime& runtime, const std::shared_ptr<Operation>& group, const engine::Call& call,
                         std::size_t parts) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!runtime.can_be_renewed(group, call, parts)) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

TEST_CASE("a group that has ended is submitted again in other memory, without being described") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    std::vector<std::vector<float>> first(300, std::vector<float>(10, mark(rank)));
    const auto group = group_of("g", first);
    const engine::Call call{.collective = Collective::kAllreduce, .name = group->descriptor.name};
    CHECK_FALSE(runtime.can_be_renewed(group, call, 300));  // it has not begun
    runtime.submit(group);
    finish(runtime, *group);
    for (int step = 1; step < 4; ++step) {
      std::vector<std::vector<float>> other(300, std::vector<float>(10, mark(rank) * static_cast<float>(step)));
      REQUIRE(comes_to_be_renewed(runtime, group, call, other.size()));
      for (std::size_t i = 0; i < other.size(); ++i) {
        const engine::Array array = {reinterpret_cast<std::byte*>(other[i].data()), group->parts[i]->descriptor.shape,
                                     DType::kFloat32};
        REQUIRE(engine::place_again(*group->parts[i], array, array));
      }
      engine::renew(*group);
      runtime.submit(group);
      finish(runtime, *group);
      for (const auto& tensor : other) REQUIRE(tensor[9] == 3.0F * static_cast<float>(step));
      REQUIRE(first[0][0] == 3.0F);
    }
  });
}

TEST_CASE("only what is the same group, is free, and has ended well is renewed") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    std::vector<std::vector<float>> tensors(3, std::vector<float>(10, mark(rank)));
    auto group = group_of("g", tensors);
    runtime.submit(group);
    finish(runtime, *group);
    const std::string name = "g";
    const std::string other = "h";
    const auto renewed = [&](const engine::Call& call, std::size_t parts = 3) {
      return runtime.can_be_renewed(group, call, parts);
    };
    const engine::Call call{.collective = Collective::kAllreduce, .name = name};
    CHECK(comes_to_be_renewed(runtime, group, call, 3));
    CHECK_FALSE(renewed(call, 2));
    CHECK_FALSE(renewed({.collective = Collective::kAllreduce, .name = other}));
    CHECK_FALSE(renewed({.collective = Collective::kAllreduce, .name = name, .compression = Compression::kInt8}));
    CHECK_FALSE(renewed({.collective = Collective::kAllgather, .name = name}));
    CHECK_FALSE(renewed({.collective = Collective::kAllreduce, .name = name, .op = ReduceOp::kMax}));
    CHECK_FALSE(renewed({.collective = Collective::kAllreduce, .name = name, .prescale = 0.5}));
    CHECK_FALSE(renewed({.collective = Collective::kAllreduce, .name = name, .postscale = 0.5}));
    CHECK_FALSE(renewed({.collective = Collective::kAllreduce, .name = name, .priority = 1}));
    {
      const std::vector<std::shared_ptr<Operation>> held{group};
      CHECK_FALSE(renewed(call));
    }
    engine::Array array = {reinterpret_cast<std::byte*>(tensors[0].data()), group->parts[0]->descriptor.shape,
                           DType::kFloat32};
    CHECK(engine::place_again(*group->parts[0], array, array));
    engine::Array ints = array;
    ints.dtype = DType::kInt32;
    CHECK_FALSE(engine::place_again(*group->parts[0], ints, ints));
    array.shape = engine::Shape::of(std::array<std::uint64_t, 1>{9});
    CHECK_FALSE(engine::place_again(*group->parts[0], array, array));

    tensors[2].resize(rank == 0 ? 4 : 5);
    group = group_of("g", tensors);
    runtime.submit(group);
    REQUIRE(runtime.wait(*group, 30 * kSecond, {}));
    REQUIRE(group->error != nullptr);
    CHECK_FALSE(renewed(call));
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
      rows.reserve(3);
      for (int i = 0; i < 3; ++i) rows.emplace_back((rank + i) * 2, 10 * rank + i);
      for (int i = 0; i < 3; ++i) {
        const auto count = static_cast<std::uint64_t>(rank) + static_cast<std::uint64_t>(i);
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

namespace {

// Part i has i rows, and that of a gather as many more as the rank's number; the last one is too large to be packed.
constexpr int kParts = 12;
std::size_t rows_of(int part) { return part == kParts - 1 ? 1 << 19 : static_cast<std::size_t>(part); }

// Of gathers or scatters, which have two dtypes in turn, of which one is rounded.
struct Mixed {
  std::vector<std::vector<std::uint16_t>> halves;
  std::vector<std::vector<std::int64_t>> numbers;
  std::vector<std::vector<std::byte>> places;
  std::shared_ptr<Operation> group;

  Mixed(Collective collective, Rank rank, int ranks, bool has_places)
      : halves(kParts), numbers(kParts), places(kParts) {
    const bool gathers = collective == Collective::kAllgather;
    std::vector<std::shared_ptr<Operation>> parts;
    for (int i = 0; i < kParts; ++i) {
      const std::size_t rows = rows_of(i) + (gathers ? static_cast<std::size_t>(rank) : 0);
      const std::size_t element = i % 2 == 0 ? 2 : 8;
      std::size_t result =
          rows_of(i) * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(ranks * (ranks - 1) / 2);
      if (!gathers) result = share_of(i, rank, ranks);
      if (has_places) places[i].resize(result * element);
      std::byte* const place = has_places ? places[i].data() : nullptr;
      halves[i].assign(i % 2 == 0 ? rows : 0, static_cast<std::uint16_t>(0x3c00 + 0x400 * rank));  // 2 ** rank
      for (std::size_t row = 0; i % 2 == 1 && row < rows; ++row) {
        numbers[i].push_back(static_cast<std::int64_t>(row) + (std::int64_t{1} << (20 + rank)));
      }
      const void* const input = i % 2 == 0 ? static_cast<const void*>(halves[i].data()) : numbers[i].data();
      parts.push_back(make(collective, "", {rows}, i % 2 == 0 ? DType::kFloat16 : DType::kInt64, input, place));
      parts.back()->output_rows = result;
    }
    group = engine::make_group("mixed", parts);
  }

  static std::size_t share_of(int part, Rank rank, int ranks) {
    const std::size_t rows = rows_of(part);
    const auto n = static_cast<std::size_t>(ranks);
    return rows / n + (static_cast<std::size_t>(rank) < rows % n ? 1 : 0);
  }

  std::vector<std::int64_t> result(int part) const {
    const Operation& operation = *group->parts[static_cast<std::size_t>(part)];
    const bool placed = operation.output != nullptr;
    const std::byte* const data = placed ? operation.output : operation.result.data();
    const std::size_t bytes = placed ? places[part].size() : operation.result.size();
    std::vector<std::int64_t> values(bytes / (part % 2 == 0 ? 2 : 8));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (part % 2 == 1) {
        std::memcpy(&values[i], data + i * 8, 8);
      } else {
        std::uint16_t bits = 0;
        std::memcpy(&bits, data + i * 2, 2);
        values[i] = bits;
      }
    }
    return values;
  }
};

// Whether the small parts of a dtype ran as one, and the large one by itself.
bool shared_a_task(const Operation& group) {
  const auto begun = [&](int part) { return group.parts[static_cast<std::size_t>(part)]->started_at; };
  for (int i = 2; i < kParts - 1; ++i) {
    if (begun(i) != begun(i - 2)) return false;
  }
  return begun(0) != begun(1) && begun(kParts - 1) != begun(0) && begun(kParts - 1) != begun(1);
}

}  // namespace

TEST_CASE("small gathers and small scatters of a group are packed, each dtype for itself, wherever the results go") {
  on_all_clusters([](Cluster& cluster) {
    const int ranks = cluster.ranks();
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      for (const bool has_places : {false, true}) {
        const Mixed gathered(Collective::kAllgather, rank, ranks, has_places);
        runtime.submit(gathered.group);
        finish(runtime, *gathered.group);
        for (int part = 0; part < kParts; ++part) {
          std::vector<std::int64_t> expected;
          for (int r = 0; r < ranks; ++r) {
            const std::size_t rows = rows_of(part) + static_cast<std::size_t>(r);
            CHECK(gathered.group->parts[static_cast<std::size_t>(part)]->result_rows[r] == rows);
            for (std::size_t row = 0; row < rows; ++row) {
              const auto number = static_cast<std::int64_t>(row) + (std::int64_t{1} << (20 + r));
              expected.push_back(part % 2 == 0 ? 0x3c00 + 0x400 * r : number);
            }
          }
          CHECK((gathered.result(part) == expected));
        }
        CHECK(shared_a_task(*gathered.group));

        const Mixed scattered(Collective::kReduceScatter, rank, ranks, has_places);
        runtime.submit(scattered.group);
        finish(runtime, *scattered.group);
        const std::int64_t sums[] = {0, 0, 0x4200, 0x4700, 0x4b80, 0x4fc0};  // 3, 7, 15, 31 as float16
        for (int part = 0; part < kParts; ++part) {
          std::size_t before = 0;
          for (Rank r = 0; r < rank; ++r) before += Mixed::share_of(part, r, ranks);
          std::vector<std::int64_t> expected;
          for (std::size_t i = 0; i < Mixed::share_of(part, rank, ranks); ++i) {
            const auto row = static_cast<std::int64_t>(before + i);
            const std::int64_t number = ranks * row + (((std::int64_t{1} << ranks) - 1) << 20);
            expected.push_back(part % 2 == 0 ? sums[ranks] : number);
          }
          CHECK((scattered.result(part) == expected));
        }
        CHECK(shared_a_task(*scattered.group));
      }
    });
  });
}

TEST_CASE("a group fails as a whole, and its names can be used again") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    for (const std::size_t wrong : {0, 1, 2, 3}) {  // 3: none
      std::vector<std::vector<float>> data;
      data.reserve(3);
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
