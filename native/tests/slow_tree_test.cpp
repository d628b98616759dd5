// Logs along a tree where each of its rounds takes longer than a rank commonly waits.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "sim_job.hpp"

using namespace ringcore;

namespace {

constexpr int kRanks = 8;

// All ranks sum up the same, and wait for it.
bool sum_up(testing::SimJob& job, const std::string& name) {
  std::vector<std::vector<float>> data(kRanks, std::vector<float>{1.0F});
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    operations.push_back(testing::SimJob::allreduce(name, data[static_cast<std::size_t>(rank)]));
    operations.back()->awaited = true;
    job.submit(rank, operations.back());
  }
  const auto done = [](const auto& operation) { return operation->done(); };
  return job.run_until([&] { return std::ranges::all_of(operations, done); }) &&
         std::ranges::all_of(data, [](const auto& sum) { return sum.front() == kRanks; });
}

std::size_t data_bytes(const testing::SimJob& job) {
  std::size_t bytes = 0;
  for (Rank from = 0; from < kRanks; ++from) {
    for (Rank to = 0; to < kRanks; ++to) {
      for (int lane = transport::kFirstDataLane; lane < transport::kLaneCount; ++lane) {
        if (from != to) bytes += job.network().history(from, to, lane).size();
      }
    }
  }
  return bytes;
}

// All ranks get what the root has, and wait for it.
bool hand_out(testing::SimJob& job, Rank root) {
  std::vector<std::vector<float>> data;
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (Rank rank = 0; rank < kRanks; ++rank) data.push_back({-0.0F, static_cast<float>(rank) + 0.1F});
  const std::vector<float> expected = data[static_cast<std::size_t>(root)];
  for (Rank rank = 0; rank < kRanks; ++rank) {
    operations.push_back(testing::SimJob::allreduce("handed out", data[static_cast<std::size_t>(rank)]));
    operations.back()->descriptor.collective = Collective::kBroadcast;
    operations.back()->descriptor.root = root;
    operations.back()->awaited = true;
    job.submit(rank, operations.back());
  }
  const auto done = [](const auto& operation) { return operation->done(); };
  const auto is_expected = [&expected](const std::vector<float>& got) {
    return std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float)) == 0;
  };
  return job.run_until([&] { return std::ranges::all_of(operations, done); }) && std::ranges::all_of(data, is_expected);
}

// All ranks get the same number of rows of each other, and wait for them; `in_place`: at places that they give.
bool gather(testing::SimJob& job, std::uint64_t rows, bool in_place) {
  const std::size_t count = rows * 2;
  std::vector<std::vector<float>> data;
  std::vector<std::vector<float>> outputs(kRanks, std::vector<float>(count * kRanks));
  std::vector<float> expected;
  std::vector<std::shared_ptr<engine::Operation>> operations;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    data.emplace_back(count, static_cast<float>(rank) + 0.1F);
    expected.insert(expected.end(), data.back().begin(), data.back().end());
  }
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const auto array = [](std::vector<float>& values, std::uint64_t rows) {
      return engine::Array{reinterpret_cast<std::byte*>(values.data()),
                           engine::Shape::of(std::array<std::uint64_t, 2>{rows, 2}), DType::kFloat32};
    };
    const auto index = static_cast<std::size_t>(rank);
    const engine::Array output = array(outputs[index], rows * kRanks);
    operations.push_back(engine::make_operation({.collective = Collective::kAllgather, .name = "gathered"},
                                                array(data[index], rows), in_place ? &output : nullptr));
    operations.back()->awaited = true;
    job.submit(rank, operations.back());
  }
  const auto done = [](const auto& operation) { return operation->done(); };
  if (!job.run_until([&] { return std::ranges::all_of(operations, done); })) return false;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const engine::Operation& operation = *operations[static_cast<std::size_t>(rank)];
    const auto* const got = in_place
                                ? reinterpret_cast<const std::byte*>(outputs[static_cast<std::size_t>(rank)].data())
                                : operation.result.data();
    if (operation.error != nullptr || operation.result_rows != std::vector<std::uint64_t>(kRanks, rows)) return false;
    // Where there is nothing, there may be no memory.
    if (rows > 0 && std::memcmp(got, expected.data(), expected.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE(
    "small allgathers that somebody waits for take their data along the tree, as many rows as they have each time") {
  transport::SimOptions options;
  options.keep_history = true;
  options.late_lanes = true;
  testing::SimJob job(kRanks, options, 4);
  for (const bool in_place : {false, true}) {
    for (const std::uint64_t rows : {1, 4, 127, 2}) REQUIRE(gather(job, rows, in_place));
  }
  CHECK(data_bytes(job) == 0);
  // Of more, links of their own bring each rank's.
  REQUIRE(gather(job, 129, false));
  CHECK(data_bytes(job) > 0);
  REQUIRE(gather(job, 0, false));
}

TEST_CASE("small broadcasts that somebody waits for take their data along the tree") {
  transport::SimOptions options;
  options.keep_history = true;
  testing::SimJob job(kRanks, options, 4);
  for (Rank root = 0; root < kRanks; ++root) REQUIRE(hand_out(job, root));
  CHECK(data_bytes(job) == 0);
}

TEST_CASE("a tree whose rounds are slow carries small sums all the same, once that is known") {
  transport::SimOptions options;
  options.shortest_delay = 8 * kMillisecond;
  options.longest_delay = 12 * kMillisecond;
  options.keep_history = true;
  testing::SimJob job(kRanks, options, 4);
  for (int i = 0; i < 10; ++i) REQUIRE(sum_up(job, "warm"));
  const std::size_t before = data_bytes(job);
  for (int i = 0; i < 10; ++i) REQUIRE(sum_up(job, "warm"));
  CHECK(data_bytes(job) == before);
}
