// Logs along a tree where each of its rounds takes longer than a rank commonly waits.
#include <doctest/doctest.h>

#include <algorithm>
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

}  // namespace

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
