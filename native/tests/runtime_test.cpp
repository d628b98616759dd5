// Threads that use a runtime: calls that are interrupted, that look for a moment only, and that end while it shuts down.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <latch>
#include <thread>

#include "cluster.hpp"

using namespace ringcore;
using engine::Operation;
using engine::Runtime;
using testing::Cluster;

namespace {

std::shared_ptr<Operation> allreduce(const std::string& name, std::vector<float>& data) {
  const engine::Call call{.collective = Collective::kAllreduce, .name = name, .op = ReduceOp::kSum};
  const engine::Array array{reinterpret_cast<std::byte*>(data.data()), engine::Shape::of(std::array{data.size()}),
                            DType::kFloat32};
  return engine::make_operation(call, array, &array);
}

// As a caller that would rather keep a lock of its own.
void try_and_finish(Runtime& runtime, const std::shared_ptr<Operation>& operation, bool alone) {
  switch (runtime.try_run(operation, alone)) {
    case Runtime::Tried::kBusy: runtime.run(operation, {}, alone); break;
    case Runtime::Tried::kSubmitted: runtime.wait(*operation, Runtime::kForever, {}, alone); break;
    case Runtime::Tried::kDone: break;
  }
  REQUIRE(operation->done());
  if (operation->error) throw *operation->error;
}

}  // namespace

TEST_CASE("a call that was interrupted can be waited for") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::latch interrupted(1);
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    std::vector<float> before(4, 1.0F);
    const auto first = allreduce("only rank 1 waits for this one", before);
    runtime.submit(first);
    if (rank == 1) runtime.wait(*first, Runtime::kForever, {});
    while (!first->done()) std::this_thread::yield();
    std::vector<float> data(4, static_cast<float>(rank + 1));
    const auto operation = allreduce("interrupted", data);
    if (rank == 0) {
      runtime.run(operation, [] { return true; });
      CHECK_FALSE(operation->done());
      CHECK_FALSE(runtime.wait(*operation, 0, {}));
      interrupted.count_down();
      REQUIRE(runtime.wait(*operation, 10 * kSecond, {}));
    } else {
      interrupted.wait();
      runtime.run(operation, {});
    }
    if (operation->error) throw *operation->error;
    CHECK(data == std::vector<float>(4, 3.0F));
  });
}

TEST_CASE("a call that only looks for a moment ends, or has begun, or is to be made in full") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  SUBCASE("by the only thread, of any size") {
    cluster.run([&](Rank rank) {
      for (int i = 0; i < 300; ++i) {
        std::vector<float> data(i % 3 == 0 ? 1'000'000 : 1 + i, static_cast<float>(rank + i));
        try_and_finish(cluster.runtime(rank), allreduce("x", data), true);
        const float expected = static_cast<float>(1 + 2 * i);
        REQUIRE(std::all_of(data.begin(), data.end(), [&](float x) { return x == expected; }));
      }
    });
  }
  SUBCASE("that the other rank makes later") {
    std::atomic<bool> submitted = false;
    cluster.run([&](Rank rank) {
      std::vector<float> data(4, static_cast<float>(rank + 1));
      const auto operation = allreduce("x", data);
      if (rank == 0) {
        CHECK(cluster.runtime(rank).try_run(operation, true) != Runtime::Tried::kDone);
        submitted = true;
        if (operation->name_hash == 0) cluster.runtime(rank).run(operation, {});
        cluster.runtime(rank).wait(*operation, Runtime::kForever, {});
      } else {
        while (!submitted) std::this_thread::yield();
        try_and_finish(cluster.runtime(rank), operation, true);
      }
      CHECK(data == std::vector<float>(4, 3.0F));
    });
  }
  SUBCASE("by several threads at once") {
    cluster.run([&](Rank rank) {
      std::vector<std::thread> threads;
      std::atomic<int> wrong = 0;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < 100; ++i) {
            std::vector<float> data(t == 3 ? 20'000 : 16, static_cast<float>((rank + 1) * (t + 1)));
            try_and_finish(cluster.runtime(rank), allreduce("thread" + std::to_string(t), data), false);
            if (data.back() != 3.0F * static_cast<float>(t + 1)) ++wrong;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("who waits while the runtime shuts down is told at the end, when nothing uses the memory any more") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::latch leaving(1);
  std::atomic<bool> held = false;
  std::vector<float> ended(4, 1.0F);
  std::vector<float> other = ended;
  std::vector<float> pending = ended;
  // Whoever drives rank 1 is held here, so that the farewell of rank 0 is not answered.
  const auto holding = allreduce("holds", other);
  holding->awaited = true;
  holding->on_done = [&](const auto&) {
    held = true;
    leaving.wait();
  };
  cluster.runtime(1).submit(holding);
  cluster.runtime(0).submit(allreduce("holds", ended));
  while (!held) std::this_thread::yield();
  const auto operation = allreduce("pending", pending);
  cluster.runtime(0).submit(operation);
  const auto left = std::async(std::launch::async, [&] { cluster.runtime(0).leave(""); });
  const auto is_leaving = [&] {
    try {
      cluster.runtime(0).remove_process_set(1);  // there is none
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kShutdown;
    }
    return false;
  };
  while (!is_leaving()) std::this_thread::yield();
  bool asked = false;
  CHECK(cluster.runtime(0).wait(*operation, Runtime::kForever, [&] {
    if (!std::exchange(asked, true)) leaving.count_down();
    return false;
  }));
  if (!asked) leaving.count_down();
  REQUIRE(operation->error != nullptr);
  CHECK(operation->error->kind() == ErrorKind::kShutdown);
}
