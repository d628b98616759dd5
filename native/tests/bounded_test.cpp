// What a long job may not fill its memory with: names, and process sets that come and go.
#include <doctest/doctest.h>

#include <malloc.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>

#include "cluster.hpp"
#include "engine/signatures.hpp"

using namespace ringcore;
using engine::Operation;
using engine::ProcessSetId;
using engine::SetNumbers;
using engine::Signatures;
using testing::Cluster;

namespace {

std::shared_ptr<Operation> allreduce(const std::string& name, std::vector<float>& data, ProcessSetId set) {
  const engine::Call call{.collective = Collective::kAllreduce, .name = name, .op = ReduceOp::kSum, .process_set = set};
  const engine::Array array{reinterpret_cast<std::byte*>(data.data()),
                            engine::Shape::of(std::array<std::uint64_t, 1>{data.size()}), DType::kFloat32};
  return engine::make_operation(call, array, &array);
}

// Of this process, in bytes; a sanitizer's allocator tells nothing.
std::size_t allocated() { return mallinfo2().uordblks; }

void reduce_and_check(Runtime& runtime, Rank rank, const std::string& name, bool blocking, ProcessSetId set) {
  std::vector<float> data(2, rank == 0 ? 1.0F : 2.0F);
  const auto operation = allreduce(name, data, set);
  if (blocking) {
    runtime.run(operation, {});
  } else {
    runtime.submit(operation);
    REQUIRE(runtime.wait(*operation, 30 * kSecond, {}));
  }
  if (operation->error) throw *operation->error;
  REQUIRE(data == std::vector<float>(2, 3.0F));
}

}  // namespace

TEST_CASE("whoever hears of a signature knows it, however late, and forgets as those do who announce it") {
  constexpr int kMembers = 3;
  constexpr std::uint32_t kGeneration = 8;
  std::mt19937 random(1);
  struct Announcement {
    std::uint64_t signature;
    std::shared_ptr<const engine::Descriptor> described;
  };
  const auto descriptor = std::make_shared<const engine::Descriptor>();
  std::vector<Signatures> tables(kMembers, Signatures(kMembers, kGeneration));
  std::deque<Announcement> under_way[kMembers][kMembers];  // from, to
  int described = 0;
  for (int turn = 0; turn < 200'000; ++turn) {
    const auto from = static_cast<int>(random() % kMembers);
    const auto to = static_cast<int>(random() % kMembers);
    auto& lane = under_way[from][to];
    if (to != from && !lane.empty() && random() % 3 != 0) {
      const Announcement next = lane.front();
      lane.pop_front();
      if (next.described != nullptr) {
        tables[to].describe(from, next.signature, next.described);
      } else {
        REQUIRE(tables[to].use(from, next.signature));
      }
      REQUIRE(tables[to].find(next.signature) != nullptr);
    } else if (random() % 2 == 0) {
      // Some come again and again, most only for a while.
      const std::uint64_t signature =
          random() % 4 == 0 ? random() % 3 : 10 + static_cast<unsigned>(turn) / 50 + random() % 6;
      Announcement next{signature, nullptr};
      if (!tables[from].use(from, signature)) {
        next.described = descriptor;
        tables[from].describe(from, signature, descriptor);
        ++described;
      }
      for (int other = 0; other < kMembers; ++other) {
        if (other != from) under_way[from][other].push_back(next);
      }
    }
    for (const Signatures& table : tables) REQUIRE(table.size() <= 8 * kMembers * kGeneration);
  }
  CHECK(described > 10'000);
}

TEST_CASE("as many names as a generation has are described once, whatever their order") {
  Signatures table(1, 100);
  int described = 0;
  for (int pass = 0; pass < 10; ++pass) {
    for (std::uint64_t i = 0; i < 100; ++i) {
      if (table.use(0, pass % 2 == 0 ? i : 99 - i)) continue;
      table.describe(0, i, nullptr);
      ++described;
    }
  }
  CHECK(described == 100);
}

TEST_CASE("the number of a process set says which use of its slot it is") {
  SetNumbers numbers;
  CHECK(numbers.take() == engine::kWorld);
  const ProcessSetId kept = numbers.take();
  std::vector<ProcessSetId> of_one_slot;
  for (int i = 0; i < 30'000; ++i) {
    const ProcessSetId id = numbers.take();
    REQUIRE(engine::slot_of(id) != engine::slot_of(kept));
    REQUIRE(engine::slot_of(id) != engine::kWorld);
    REQUIRE_FALSE(numbers.is_to_come(id));
    if (engine::slot_of(id) == 2) of_one_slot.push_back(id);
    numbers.free(id);
    REQUIRE_FALSE(numbers.is_to_come(id));  // what is late is not early
  }
  REQUIRE(of_one_slot.size() >= 3);
  CHECK(of_one_slot[0] != of_one_slot[1]);
  CHECK(of_one_slot[1] != of_one_slot[2]);
  // Until no slot is free.
  for (int i = 2; i <= SetNumbers::kLastCounted; ++i) numbers.take();
  CHECK_THROWS_WITH_AS(numbers.take(), doctest::Contains("Remedy: remove those"), Error);
}

TEST_CASE("names that never come again do not fill the memory") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::array<std::size_t, 2> after{};
  for (int half = 0; half < 2; ++half) {
    cluster.run([&](Rank rank) {
      for (int i = 0; i < 50'000; ++i) {
        const std::string name = "step" + std::to_string(half * 50'000 + i);
        reduce_and_check(cluster.runtime(rank), rank, name, i % 16 != 0, engine::kWorld);
      }
    });
    after[half] = allocated();
  }
  CHECK(after[1] < after[0] + (4 << 20));
}

TEST_CASE("process sets that come and go do not fill the memory, and there may be any number in a row") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::array<std::size_t, 2> after{};
  for (int half = 0; half < 2; ++half) {
    cluster.run([&](Rank rank) {
      for (int i = 0; i < 5'000; ++i) {
        const ProcessSetId set = cluster.runtime(rank).add_process_set({0, 1});
        reduce_and_check(cluster.runtime(rank), rank, "x", true, set);
        cluster.runtime(rank).remove_process_set(set);
      }
    });
    after[half] = allocated();
  }
  CHECK(after[1] < after[0] + (4 << 20));
}
