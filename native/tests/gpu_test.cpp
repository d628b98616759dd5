// Operations on GPUs, through the test double: what the host does not wait for, and who waits for whom on the GPU.
#include <algorithm>
#include <chrono>
#include <future>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "capi/capi.hpp"
#include "carriers/gpu/tensor.hpp"
#include "carriers/standard.hpp"
#include "cluster.hpp"
#include "device/libraries.hpp"
#include "gpu_framework.hpp"

namespace {

using namespace ringcore;
using engine::Operation;
using testing::allreduce;
using testing::call_double;
using testing::Capture;
using testing::Cluster;
using testing::Framework;
using testing::submit_and_wait;
using testing::tell_double;
using testing::use_double;

TEST_CASE("gpu: the host does not wait, our stream waits for the framework's, and the framework's for ours") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    std::vector<float> values(1000, static_cast<float>(rank + 1));
    std::vector<float> result;
    tell_double("gpu_double_hold", framework.stream());
    device::Memory tensor = framework.tensor(values);  // is written only when the stream goes on
    const engine::Array array = framework.array(tensor, DType::kFloat32);
    const std::string name = "held";
    cluster.runtime(rank).start_timeline();
    const auto operation = engine::make_operation(allreduce(name), array, &array);
    cluster.runtime(rank).run(operation, {});
    REQUIRE(operation->error == nullptr);
    CHECK_FALSE(carriers::has_ended(*operation));
    carriers::hold_back(*operation, framework.handle());
    framework.read(tensor, result);
    tell_double("gpu_double_let_go", framework.stream());
    framework.synchronize();
    CHECK(carriers::has_ended(*operation));
    CHECK(result == std::vector<float>(1000, 3.0F));
    const std::vector<engine::Span> spans = cluster.runtime(rank).stop_timeline();
    CHECK(std::count_if(spans.begin(), spans.end(), [](const auto& span) {
            return span.name == "held" && span.activity == "launch" && span.submitted > 0;
          }) == 1);
  });
}

// More tensors than a launch of the kernels takes, of sizes that are no multiples of 16 bytes.
TEST_CASE("gpu: a group is packed, averaged with its factors, and unpacked") {
  use_double();
  constexpr int kTensors = 130;
  Cluster cluster({.ranks = 3});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    std::vector<std::vector<double>> values;
    std::vector<device::Memory> tensors;
    std::vector<std::shared_ptr<Operation>> parts;
    const std::string name = "group";
    engine::Call call = allreduce(name, ReduceOp::kAverage);
    call.prescale = 4.0;
    call.postscale = 0.75;
    for (int i = 0; i < kTensors; ++i) {
      values.emplace_back(i % 7 + 1, i + 64.0 * rank);
      tensors.push_back(framework.tensor(values.back()));
      const engine::Array array = framework.array(tensors.back(), DType::kFloat64);
      parts.push_back(engine::make_operation(call, array, &array));
    }
    const auto group = engine::make_group(name, std::move(parts));
    cluster.runtime(rank).run(group, {});
    REQUIRE(group->error == nullptr);
    carriers::hold_back(*group, framework.handle());
    std::vector<std::vector<double>> results(kTensors);
    for (int i = 0; i < kTensors; ++i) framework.read(tensors[i], results[i]);
    framework.synchronize();
    for (int i = 0; i < kTensors; ++i) CHECK(results[i] == std::vector<double>(i % 7 + 1, 3.0 * (i + 64.0)));
  });
}

// Each of these has its own way through NCCL where rows do not divide.
TEST_CASE("gpu: reducescatter of uneven rows, alltoall, gathers and scatter, on two process sets") {
  use_double();
  Cluster cluster({.ranks = 3});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    Runtime& runtime = cluster.runtime(rank);
    const engine::ProcessSetId pair = runtime.add_process_set({0, 2});
    std::vector<float> values(7);
    std::iota(values.begin(), values.end(), 0.0F);
    device::Memory tensor = framework.tensor(values);
    engine::Array array = framework.array(tensor, DType::kFloat32);
    const auto result_of = [&](Collective collective, engine::ProcessSetId set, std::vector<std::uint64_t> splits) {
      const std::string name = std::string(name_of(collective)) + std::to_string(set);
      const auto operation =
          engine::make_operation({.collective = collective, .name = name, .process_set = set}, array, nullptr);
      operation->splits = std::move(splits);
      runtime.run(operation, {});
      REQUIRE(operation->error == nullptr);
      carriers::hold_back(*operation, framework.handle());
      std::vector<float> result;
      framework.read(carriers::gpu_tensor(*operation)->result, result);
      framework.synchronize();
      return result;
    };
    const std::vector<std::vector<float>> sums{{0, 3, 6}, {9, 12}, {15, 18}};
    CHECK(result_of(Collective::kReduceScatter, engine::kWorld, {}) == sums[rank]);
    const auto from_each = static_cast<std::size_t>(rank == 0 ? 7 : 0);
    CHECK(result_of(Collective::kAlltoall, engine::kWorld, {7, 0, 0}).size() == from_each * 3);
    // To and from rank 0.
    std::vector<float> gathered;
    for (int rows = 1; rows <= 3 && rank == 0; ++rows)
      gathered.insert(gathered.end(), values.begin(), values.begin() + rows);
    const std::vector<float> few(values.begin(), values.begin() + rank + 1);
    device::Memory fewer = framework.tensor(few);
    const engine::Array whole = std::exchange(array, framework.array(fewer, DType::kFloat32));
    CHECK(result_of(Collective::kGather, engine::kWorld, {}) == gathered);
    array = whole;
    const std::vector<std::vector<float>> dealt{{0, 1}, {}, {2, 3, 4, 5, 6}};
    CHECK(result_of(Collective::kScatter, engine::kWorld, {2, 0, 5}) == dealt[rank]);
    if (rank == 1) return;
    CHECK(result_of(Collective::kAllgather, pair, {}).size() == 14);
  });
}

TEST_CASE("gpu: captured collectives run in each replay, without the host") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    Runtime& runtime = cluster.runtime(rank);
    const device::Memory sum = framework.filled(std::vector<float>(5));
    const device::Memory means = framework.filled(std::vector<double>(3));
    const device::Memory more = framework.filled(std::vector<double>(300));
    const device::Memory source = framework.filled(std::vector<float>(4));
    const device::Memory target = framework.filled(std::vector<float>(4));
    const device::Memory alone = framework.filled(std::vector<float>(1));
    const engine::Array in_place = framework.array(sum, DType::kFloat32);
    const engine::Array held = framework.array(alone, DType::kFloat32);
    const std::string first = "first";
    submit_and_wait(runtime, engine::make_operation(allreduce(first), in_place, &in_place), framework);
    framework.synchronize();
    // A collective that has not ended: the engine looks after it again and again while the graph is captured.
    const Framework other(rank);
    tell_double("gpu_double_hold", other.stream());
    engine::Array waits = held;
    waits.stream = other.handle();
    const std::string name = "not ended";
    const auto not_ended = engine::make_operation(allreduce(name), waits, &waits);
    runtime.run(not_ended, {});

    Capture graph(framework.stream());
    const std::string reduced = "sum";
    submit_and_wait(runtime, engine::make_operation(allreduce(reduced), in_place, &in_place), framework);
    const std::string grouped = "means";
    engine::Call call = allreduce(grouped, ReduceOp::kAverage);
    call.prescale = 4.0;
    std::vector<std::shared_ptr<Operation>> parts;
    for (const device::Memory* memory : {&means, &more}) {
      const engine::Array array = framework.array(*memory, DType::kFloat64);
      parts.push_back(engine::make_operation(call, array, &array));
    }
    submit_and_wait(runtime, engine::make_group(grouped, std::move(parts)), framework);
    const std::string sent = "broadcast";
    const engine::Array from = framework.array(source, DType::kFloat32);
    const engine::Array to = framework.array(target, DType::kFloat32);
    const engine::Call broadcast{.collective = Collective::kBroadcast, .name = sent, .root = 1};
    submit_and_wait(runtime, engine::make_operation(broadcast, from, &to), framework);
    const int queries = call_double("gpu_double_event_queries");
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (call_double("gpu_double_event_queries") < queries + 4) {  // the engines do
      if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("nobody asks for events");
      std::this_thread::yield();
    }
    REQUIRE(graph.end() == 0);

    CHECK_FALSE(carriers::has_ended(*not_ended));
    tell_double("gpu_double_let_go", other.stream());
    carriers::hold_back(*not_ended, framework.handle());  // replays follow it on all ranks
    const auto base = static_cast<float>(rank);
    for (const float step : {1.0F, 10.0F}) {
      const std::vector<float> values(5, base + step);
      const std::vector<double> pairs(3, rank + 2.0 * step);
      const std::vector<double> many(300, rank * 3.0 + step);
      const std::vector<float> given(4, base + 7 * step);
      framework.write(sum, values);
      framework.write(means, pairs);
      framework.write(more, many);
      framework.write(source, given);
      graph.launch();
      std::vector<float> sums;
      std::vector<double> averages;
      std::vector<double> others;
      std::vector<float> got;
      framework.read(sum, sums);
      framework.read(means, averages);
      framework.read(more, others);
      framework.read(target, got);
      framework.synchronize();
      CHECK(sums == std::vector<float>(5, 1 + 2 * step));
      CHECK(averages == std::vector<double>(3, 2 + 8.0 * step));
      CHECK(others == std::vector<double>(300, 6 + 4.0 * step));
      CHECK(got == std::vector<float>(4, 1 + 7 * step));
    }
    // What the engine runs and what graphs run follow each other.
    submit_and_wait(runtime, engine::make_operation(allreduce(first), in_place, &in_place), framework);
    std::vector<float> sums;
    framework.read(sum, sums);
    framework.synchronize();
    CHECK(sums == std::vector<float>(5, 42));
  });
}

TEST_CASE("gpu: a rank that captures and one that does not are told so, and both go on") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    Runtime& runtime = cluster.runtime(rank);
    const device::Memory tensor = framework.filled(std::vector<float>(3, 1));
    const engine::Array array = framework.array(tensor, DType::kFloat32);
    const std::string name = "differs";
    submit_and_wait(runtime, engine::make_operation(allreduce(name), array, &array), framework);
    std::optional<Capture> graph;
    if (rank == 0) graph.emplace(framework.stream());
    const auto operation = engine::make_operation(allreduce(name), array, &array);
    runtime.run(operation, {});
    REQUIRE(operation->error != nullptr);
    CHECK(operation->error->kind() == ErrorKind::kMismatch);
    const std::string text = operation->error->what();
    CHECK(text.find("'differs' was submitted differently: rank 0: allreduce sum of float32 [3] on a GPU, captured into "
                    "a CUDA graph; rank 1: allreduce sum of float32 [3] on a GPU.") != std::string::npos);
    CHECK(text.find("capture the same steps on all ranks") != std::string::npos);
    if (graph) CHECK(graph->end() == 0);
    submit_and_wait(runtime, engine::make_operation(allreduce(name), array, &array), framework);
  });
}

TEST_CASE("gpu: what cannot be captured is refused, with the reason and a remedy") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    Runtime& runtime = cluster.runtime(rank);
    const device::Memory tensor = framework.filled(std::vector<float>(4, 1));
    const engine::Array array = framework.array(tensor, DType::kFloat32);
    const engine::Array integers = framework.array(tensor, DType::kInt16);
    const std::string name = "step";
    const auto refused = [&](const std::shared_ptr<Operation>& operation, const std::string& why) {
      CHECK_THROWS_WITH_AS(submit_and_wait(runtime, operation, framework), doctest::Contains(why.c_str()), Error);
    };
    {
      Capture graph(framework.stream());
      refused(
          engine::make_operation(allreduce(name), array, &array),
          "'step' cannot be captured into a CUDA graph: it is the first of its process set, and the ranks' GPUs are "
          "not connected yet. Remedy: run one step without capturing first.");
      CHECK(graph.end() == 0);
    }
    submit_and_wait(runtime, engine::make_operation(allreduce(name), array, &array), framework);
    Capture graph(framework.stream());
    for (const Collective collective : {Collective::kAllgather, Collective::kAlltoall, Collective::kReduceScatter}) {
      refused(
          engine::make_operation({.collective = collective, .name = name}, array, nullptr),
          "'step' cannot be captured into a CUDA graph: the size of the result of " + std::string(name_of(collective)));
    }
    refused(engine::make_operation(allreduce(name), integers, &integers), "it would be copied to the host");
    CHECK(graph.end() == 0);
    const auto after = engine::make_operation(allreduce(name), array, &array);
    submit_and_wait(runtime, after, framework);
    std::vector<float> values;
    framework.read(tensor, values);
    framework.synchronize();
    CHECK(values == std::vector<float>(4, 4));
  });
}

TEST_CASE("gpu: what is captured while small tensors gather is in the graph all the same") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    Runtime& runtime = cluster.runtime(rank);
    const device::Memory tensor = framework.filled(std::vector<float>(3, 1));
    const engine::Array array = framework.array(tensor, DType::kFloat32);
    submit_and_wait(runtime, engine::make_operation(allreduce("step"), array, &array), framework);
    std::vector<std::vector<float>> small(16, std::vector<float>(4, 1.0F));
    for (int round = 0; round < 50; ++round) {
      std::vector<std::shared_ptr<Operation>> burst;
      for (std::vector<float>& values : small) {
        const std::uint64_t count = values.size();
        const engine::Array host{.data = reinterpret_cast<std::byte*>(values.data()),
                                 .shape = engine::Shape::of({&count, 1}),
                                 .dtype = DType::kFloat32};
        burst.push_back(engine::make_operation(allreduce("small " + std::to_string(burst.size())), host, &host));
        runtime.submit(burst.back());
        // In the middle of it: the thread that gathers begins at some moment.
        if (burst.size() % 4 != 0) continue;
        Capture graph(framework.stream());
        submit_and_wait(runtime, engine::make_operation(allreduce("step"), array, &array), framework);
        REQUIRE(graph.end() == 0);
      }
      for (const auto& operation : burst) runtime.wait(*operation, Runtime::kForever, {});
    }
  });
}

// NCCL waits with the end of a communicator until no graph has a collective of it.
TEST_CASE("gpu: leaving does not wait for the graphs that are still there") {
  use_double();
  std::vector<std::unique_ptr<Capture>> graphs(2);
  std::vector<std::unique_ptr<Framework>> frameworks(2);
  std::vector<device::Memory> tensors(2);
  {
    Cluster cluster({.ranks = 2});
    cluster.run([&](Rank rank) {
      frameworks[rank] = std::make_unique<Framework>(rank);
      const Framework& framework = *frameworks[rank];
      tensors[rank] = framework.filled(std::vector<float>(3, 1));
      const engine::Array array = framework.array(tensors[rank], DType::kFloat32);
      const std::string name = "step";
      submit_and_wait(cluster.runtime(rank), engine::make_operation(allreduce(name), array, &array), framework);
      graphs[rank] = std::make_unique<Capture>(framework.stream());
      submit_and_wait(cluster.runtime(rank), engine::make_operation(allreduce(name), array, &array), framework);
      CHECK(graphs[rank]->end() == 0);
    });
  }
}

TEST_CASE("gpu: leaving waits for what the GPU has not ended, and submits nothing more") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    std::vector<float> result;
    const std::vector<float> values(1000, static_cast<float>(rank + 1));
    tell_double("gpu_double_hold", framework.stream());
    device::Memory tensor = framework.tensor(values);
    const engine::Array array = framework.array(tensor, DType::kFloat32);
    const std::string name = "held";
    Runtime& runtime = cluster.runtime(rank);
    runtime.run(engine::make_operation(allreduce(name), array, &array), {});
    std::promise<void> left;
    std::future<void> leaves = left.get_future();
    std::thread leaver([&] {
      runtime.leave("");
      left.set_value();
    });
    // A leave that waits for nothing ends in this time.
    CHECK(leaves.wait_for(std::chrono::milliseconds(300)) == std::future_status::timeout);
    CHECK_THROWS_WITH_AS(runtime.run(engine::make_operation(allreduce(name), array, &array), {}),
                         doctest::Contains("ringcore was shut down on this rank"), Error);
    tell_double("gpu_double_let_go", framework.stream());
    runtime.leave("");  // by two threads at once
    leaver.join();
    framework.read(tensor, result);
    framework.synchronize();
    CHECK(result == std::vector<float>(1000, 3.0F));
  });
}

// As a custom call of XLA works: it returns when the operation is launched, and its results lie in XLA's memory.
TEST_CASE("gpu: through the C border") {
  use_double();
  RuntimeConfig config;
  config.engine.links.resize(1);
  config.engine.host_of = {0};
  config.engine.make_carriers = carriers::standard();
  const auto runtime = std::make_shared<Runtime>(std::move(config));
  capi::set_runtime(runtime);
  const Framework framework(0);
  const std::vector<float> values{1, 2, 3};
  const device::Memory input = framework.tensor(values);
  const std::vector<float> nothing(values.size());
  const device::Memory output = framework.tensor(nothing);
  const std::uint64_t shape = values.size();
  const ringcore_array array{input.data(), &shape, 1, RINGCORE_FLOAT32};
  struct Call {
    const Framework& framework;
    const device::Memory& output;
    std::int32_t code = -1;
    std::size_t bytes = 0;
  } call{framework, output};
  ringcore_request request{};
  request.name = "gathered";
  request.name_bytes = 8;
  request.collective = RINGCORE_ALLGATHER;
  request.prescale = request.postscale = 1.0;
  request.inputs = &array;
  request.count = 1;
  request.blocking = 1;
  request.on_gpu = 1;
  request.stream = framework.stream();
  const auto done = [](void* context, ringcore_operation* operation) {
    auto& ended = *static_cast<Call*>(context);
    const char* message = nullptr;
    ended.code = capi::table()->error(operation, &message);
    CHECK(capi::table()->hold_back(operation, ended.framework.stream()) == RINGCORE_OK);
    ended.bytes =
        capi::table()->copy_result(operation, 0, ended.output.data(), ended.output.size(), ended.framework.stream());
  };
  capi::table()->submit(&request, done, &call);
  CHECK(call.code == RINGCORE_OK);
  CHECK(call.bytes == input.size());
  std::vector<float> result;
  framework.read(output, result);
  framework.synchronize();
  CHECK(result == values);
  capi::set_runtime({});
}

}  // namespace
