// Threads that use a runtime: calls that are interrupted, that look for a moment only, and that end while it shuts down.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <latch>
#include <thread>

#include <unistd.h>

#include "cluster.hpp"
#include "runtime/timeline_file.hpp"

using namespace ringcore;
using engine::Operation;
using testing::Cluster;

namespace {

std::shared_ptr<Operation> allreduce(const std::string& name, std::vector<float>& data,
                                     engine::ProcessSetId set = engine::kWorld) {
  const engine::Call call{.collective = Collective::kAllreduce, .name = name, .op = ReduceOp::kSum, .process_set = set};
  const engine::Array array{reinterpret_cast<std::byte*>(data.data()), engine::Shape::of(std::array{data.size()}),
                            DType::kFloat32};
  return engine::make_operation(call, array, &array);
}

// As a caller that would rather keep a lock of its own.
Runtime::Tried try_and_finish(Runtime& runtime, const std::shared_ptr<Operation>& operation, Runtime::Caller caller) {
  const Runtime::Tried tried = runtime.try_run(operation, caller);
  switch (tried) {
    case Runtime::Tried::kNotSubmitted: runtime.run(operation, {}, caller); break;
    case Runtime::Tried::kSubmitted: runtime.wait(*operation, Runtime::kForever, {}, caller); break;
    case Runtime::Tried::kDone: break;
  }
  REQUIRE(operation->done());
  if (operation->error) throw *operation->error;
  return tried;
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

TEST_CASE("a call that was interrupted keeps its name until the others have answered") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  cluster.run([&](Rank rank) {
    std::vector<float> greeting(4, 1.0F);
    cluster.runtime(rank).run(allreduce("greeting", greeting), {});
  });
  std::vector<float> interrupted(4, 1.0F);
  const auto first = allreduce("cell", interrupted);
  cluster.runtime(0).run(first, [] { return true; });
  REQUIRE_FALSE(first->done());
  std::vector<float> again(4, 4.0F);
  const auto is_refused = [&] {
    try {
      cluster.runtime(0).run(allreduce("cell", again), {});
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("'cell'") != std::string::npos);
      return error.kind() == ErrorKind::kDuplicateName;
    }
    return false;
  };
  // By the same thread as by another one: the first use of the name goes on.
  REQUIRE(is_refused());
  REQUIRE(std::async(std::launch::async, is_refused).get());
  CHECK(cluster.runtime(0).failure() == nullptr);
  std::vector<float> answer(4, 2.0F);
  const auto answered = allreduce("cell", answer);
  cluster.runtime(1).run(answered, {});
  REQUIRE(answered->error == nullptr);
  CHECK(answer == std::vector<float>(4, 3.0F));
  cluster.run([&](Rank rank) {
    std::vector<float>& data = rank == 0 ? again : answer;
    const auto operation = allreduce("cell", data);
    cluster.runtime(rank).run(operation, {});
    if (operation->error) throw *operation->error;
    CHECK(data == std::vector<float>(4, 7.0F));
  });
  CHECK(first->done());
  CHECK(interrupted == std::vector<float>(4, 3.0F));
}

TEST_CASE("a rank may join while a small call of its own is under way") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  const auto join = [] {
    auto operation = std::make_shared<Operation>();
    operation->join = true;
    return operation;
  };
  // The ranks have greeted each other: nothing else is in the way of a small call.
  cluster.run([&](Rank rank) {
    std::vector<float> greeting(4, 1.0F);
    cluster.runtime(rank).run(allreduce("greeting", greeting), {});
  });
  std::vector<float> data[2] = {std::vector<float>(4, 1.0F), std::vector<float>(4, 2.0F)};
  const auto early = allreduce("x", data[0]);
  early->awaited = true;
  cluster.runtime(0).submit(early);
  const auto joined = join();
  cluster.runtime(0).submit(joined);
  cluster.runtime(1).run(allreduce("x", data[1]), {});
  const auto last = join();
  cluster.runtime(1).submit(last);
  for (const auto& [runtime, operation] :
       {std::pair{&cluster.runtime(0), early}, {&cluster.runtime(0), joined}, {&cluster.runtime(1), last}}) {
    REQUIRE(runtime->wait(*operation, 10 * kSecond, {}));
    if (operation->error) throw *operation->error;
  }
  CHECK(data[0] == std::vector<float>(4, 3.0F));
  CHECK(data[1] == data[0]);
  CHECK(joined->last_joined == 1);
}

TEST_CASE("a rank whose calls never wait beats its heart") {
  testing::ClusterOptions options{.ranks = 3, .host_of = {}};
  options.settings.heartbeat = kSecond;
  Cluster cluster(options);
  engine::ProcessSetId set = 0;
  for (Rank rank = 0; rank < 3; ++rank) set = cluster.runtime(rank).add_process_set({0, 1});
  const SteadyClock clock;
  // One thread plays two ranks in step, so that none of them ever waits; the third one has nothing to do.
  for (const Nanoseconds begin = clock.now(); clock.now() - begin < 3 * kSecond;) {
    std::vector<float> first(4, 1.0F);
    std::vector<float> second(4, 2.0F);
    const auto earlier = allreduce("x", first, set);
    earlier->awaited = true;
    cluster.runtime(0).submit(earlier);
    cluster.runtime(1).run(allreduce("x", second, set), {}, Runtime::Caller::kUnknown);
    cluster.runtime(0).wait(*earlier, Runtime::kForever, {}, Runtime::Caller::kUnknown);
    if (earlier->error) throw *earlier->error;
  }
  for (Rank rank = 0; rank < 3; ++rank) {
    const auto failure = cluster.runtime(rank).failure();
    CHECK_MESSAGE(failure == nullptr, (failure == nullptr ? "" : failure->what()));
  }
}

TEST_CASE("a call that only looks for a moment ends, or has begun, or is to be made in full") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  SUBCASE("by the only thread, of any size") {
    cluster.run([&](Rank rank) {
      for (int i = 0; i < 300; ++i) {
        std::vector<float> data(i % 3 == 0 ? 1'000'000 : 1 + i, static_cast<float>(rank + i));
        try_and_finish(cluster.runtime(rank), allreduce("x", data), Runtime::Caller::kAlone);
        const float expected = static_cast<float>(1 + 2 * i);
        REQUIRE(std::all_of(data.begin(), data.end(), [&](float x) { return x == expected; }));
      }
    });
  }
  SUBCASE("that the other rank has made before") {
    // Unless the engine is busy just then.
    bool at_once = false;
    for (int i = 0; i < 100 && !at_once; ++i) {
      std::vector<float> first(4, 1.0F);
      std::vector<float> second(4, 2.0F);
      const auto earlier = allreduce("x", first);
      const Runtime::Tried tried = cluster.runtime(0).try_run(earlier, Runtime::Caller::kUnknown);
      CHECK(tried != Runtime::Tried::kDone);
      if (tried == Runtime::Tried::kNotSubmitted) {
        earlier->awaited = true;
        cluster.runtime(0).submit(earlier);
      }
      at_once = try_and_finish(cluster.runtime(1), allreduce("x", second), Runtime::Caller::kUnknown) ==
                Runtime::Tried::kDone;
      REQUIRE(cluster.runtime(0).wait(*earlier, 10 * kSecond, {}));
      CHECK(first == std::vector<float>(4, 3.0F));
      CHECK(second == first);
    }
    CHECK(at_once);
  }
  SUBCASE("by several threads at once") {
    cluster.run([&](Rank rank) {
      std::vector<std::thread> threads;
      std::atomic<int> wrong = 0;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < 100; ++i) {
            std::vector<float> data(t == 3 ? 20'000 : 16, static_cast<float>((rank + 1) * (t + 1)));
            try_and_finish(cluster.runtime(rank), allreduce("thread" + std::to_string(t), data),
                           Runtime::Caller::kUnknown);
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
  std::latch leaving(1);  // outlives who waits for it
  Cluster cluster({.ranks = 2, .host_of = {}});
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

TEST_CASE("a timeline has every small call, and only as many spans as there is room for") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  constexpr int kCalls = 3000;
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    runtime.start_timeline();
    for (int i = 0; i < kCalls; ++i) {
      std::vector<float> data(2, 1.0F);
      try_and_finish(runtime, allreduce("x", data), Runtime::Caller::kAlone);
    }
    const std::vector<engine::Span> spans = runtime.stop_timeline();
    const auto is_call = [](const engine::Span& span) { return span.activity == "short cut" && span.name == "x"; };
    CHECK(std::count_if(spans.begin(), spans.end(), is_call) == kCalls);
    CHECK(std::all_of(spans.begin(), spans.end(),
                      [](const auto& span) { return span.begin > 0 && span.begin <= span.end; }));
  });
  engine::Timeline timeline;
  timeline.start();
  for (int i = 0; i < 1'000'007; ++i) timeline.record({"x", "short cut", 0, -1, i, i, 0});
  const std::vector<engine::Span> spans = timeline.take();
  REQUIRE(spans.size() == 1'000'001);
  CHECK(spans.back().activity == "7 spans are left out");
  timeline.record({"x", "short cut", 0, -1, 1, 2, 8});
  CHECK(timeline.take().size() == 1);
}

TEST_CASE("a timeline is in its file as soon as an operation has ended, whatever the name of it") {
  const std::string path = "/tmp/ringcore-timeline-test." + std::to_string(::getpid());
  TimelineFile file(path, 3, 1'000);
  const auto read = [&] {
    std::ifstream stream(path);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  file.add({"a \"b\"\n", "short cut", 0, -1, 3'500, 4'000, 8, 2'000, true});
  file.flush();
  const std::string text = read();
  CHECK(text.starts_with("[\n"));
  CHECK(
      text.ends_with("{\"ph\":\"X\",\"name\":\"short cut\",\"cat\":\"operation\",\"pid\":3,\"tid\":1000,\"ts\":2.500,"
                     "\"dur\":0.500,\"args\":{\"tensor\":\"a \\\"b\\\"\\u000a\",\"bytes\":8,\"submitted\":1.000,"
                     "\"awaited\":true}},\n"));
  CHECK(file.failure().empty());
  std::filesystem::remove(path);
  CHECK_THROWS_AS(TimelineFile("/nowhere/at/all", 0, 0), Error);

  TimelineFile full("/dev/full", 0, 0);
  CHECK(full.failure() == "No space left on device");
  full.add({"x", "ring", 1, -1, 1, 2, 8});
  full.flush();
}

TEST_CASE("what fails is in the timeline, and what a thread waits for beside its own work") {
  Cluster cluster({.ranks = 2, .host_of = {}});
  std::latch waiting(1);
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    runtime.start_timeline();
    std::vector<float> data(2, 1.0F);
    if (rank == 1) waiting.wait();
    const auto beside = allreduce("beside", data);
    runtime.submit(beside);
    bool asked = false;
    if (!beside->done()) {
      runtime.wait(*beside, Runtime::kForever, [&] {
        if (rank == 0 && !std::exchange(asked, true)) waiting.count_down();
        return false;
      });
    }
    std::vector<float> other(rank == 0 ? 2 : 3, 1.0F);
    const auto wrong = allreduce("wrong", other);
    runtime.run(wrong, {});
    CHECK(wrong->error != nullptr);
    const std::vector<engine::Span> spans = runtime.stop_timeline();
    const auto count = [&](const std::string& name, const std::string& activity) {
      return std::count_if(spans.begin(), spans.end(),
                           [&](const auto& span) { return span.name == name && span.activity == activity; });
    };
    CHECK(count("wrong", "failed") == 1);
    CHECK(count("beside", "failed") == 0);
    if (rank == 0) CHECK(count("beside", "wait") == 1);
  });
}

TEST_CASE("whoever looks at a running job is told what a rank waits for, and what it has moved") {
  for (const bool shared : {true, false}) {
    Cluster cluster({.ranks = 2, .host_of = shared ? std::vector<int>{} : std::vector<int>{0, 1}});
    std::latch looked(1);
    cluster.run([&](Rank rank) {
      Runtime& runtime = cluster.runtime(rank);
      std::vector<float> large(1 << 18, 1.0F);
      runtime.run(allreduce("large", large), {});
      const Runtime::Statistics moved = runtime.statistics();
      CHECK(moved.operations == 1);
      CHECK(moved.pending.empty());
      REQUIRE(moved.traffic.size() == 1);
      const transport::Link::Traffic& traffic = moved.traffic.begin()->second;
      CHECK(traffic.sent + traffic.received >= large.size() * sizeof(float));

      std::vector<float> data(2, 1.0F);
      if (rank == 1) looked.wait();
      const auto late = allreduce("late", data);
      bool asked = false;
      const auto look = [&] {
        if (rank == 1 || std::exchange(asked, true)) return false;
        const Runtime::Statistics waits = runtime.statistics();
        REQUIRE(waits.pending.size() == 1);
        CHECK(waits.pending[0].title == "allreduce 'late'");
        CHECK(waits.pending[0].missing == std::vector<Rank>{1});
        CHECK_FALSE(waits.pending[0].released);
        CHECK(waits.pending[0].since > 0);
        CHECK(waits.pending[0].since < waits.now);
        looked.count_down();
        return false;
      };
      runtime.run(late, look);
      CHECK(runtime.statistics().operations == 2);
    });
  }
}
