// Ranks that use several GPUs each, as where a model is divided among them.
#include <array>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "carriers/gpu/tensor.hpp"
#include "cluster.hpp"
#include "gpu_framework.hpp"

namespace {

using namespace ringcore;
using engine::Operation;
using testing::allreduce;
using testing::Cluster;
using testing::Framework;
using testing::submit_and_wait;
using testing::use_double;

// Rank r has GPUs 2 r and 2 r + 1; `of` counts them.
int gpu_of(Rank rank, int of) { return 2 * rank + of; }

std::shared_ptr<Operation> sum_of(const std::string& name, const Framework& framework, const device::Memory& tensor) {
  const engine::Array array = framework.array(tensor, DType::kFloat32);
  return engine::make_operation(allreduce(name), array, &array);
}

TEST_CASE("gpu: a rank has tensors on two GPUs, alone, in buckets and in a group") {
  use_double();
  Cluster cluster({.ranks = 3});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    const std::array<Framework, 2> gpus{Framework(gpu_of(rank, 0)), Framework(gpu_of(rank, 1))};
    const auto value = [rank](int of) { return static_cast<float>(10 * of + rank + 1); };
    const auto expected = [](int of) { return static_cast<float>(30 * of + 6); };
    constexpr int kTensors = 6;  // by turns on the one and on the other
    std::vector<device::Memory> tensors;
    std::vector<std::shared_ptr<Operation>> operations;
    for (int i = 0; i < kTensors; ++i) {
      tensors.push_back(gpus[i % 2].filled(std::vector<float>(100 + i, value(i % 2))));
      operations.push_back(sum_of("tensor " + std::to_string(i), gpus[i % 2], tensors.back()));
    }
    for (const auto& operation : operations) runtime.submit(operation);
    std::vector<float> result;
    for (int i = 0; i < kTensors; ++i) {
      runtime.wait(*operations[i], Runtime::kForever, {});
      REQUIRE(operations[i]->error == nullptr);
      CHECK(operations[i]->descriptor.device_index == i % 2);
      carriers::hold_back(*operations[i], gpus[i % 2].handle());
      gpus[i % 2].read(tensors[i], result);
      gpus[i % 2].synchronize();
      CHECK(result == std::vector<float>(100 + i, expected(i % 2)));
    }
    std::vector<std::shared_ptr<Operation>> parts;
    for (const int of : {0, 1}) {
      tensors.push_back(gpus[of].filled(std::vector<float>(7, value(of))));
      parts.push_back(sum_of("group", gpus[of], tensors.back()));
    }
    const auto group = engine::make_group("group", parts);
    runtime.run(group, {});
    REQUIRE(group->error == nullptr);
    for (const int of : {0, 1}) {
      carriers::hold_back(*group, gpus[of].handle(), gpu_of(rank, of));
      gpus[of].read(tensors[kTensors + of], result);
      gpus[of].synchronize();
      CHECK(result == std::vector<float>(7, expected(of)));
    }
  });
}

TEST_CASE("gpu: the stream of one GPU does not wait for what another one has of a group") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    const Framework quick(gpu_of(rank, 0));
    const Framework slow(gpu_of(rank, 1));
    const device::Memory first = quick.filled(std::vector<float>(3, 1.0F));
    const device::Memory second = slow.filled(std::vector<float>(3, 2.0F));
    testing::tell_double("gpu_double_hold", slow.stream());
    const auto group = engine::make_group("half", {sum_of("half", quick, first), sum_of("half", slow, second)});
    cluster.runtime(rank).run(group, {});
    REQUIRE(group->error == nullptr);
    std::vector<float> result;
    carriers::hold_back(*group, quick.handle(), gpu_of(rank, 0));
    quick.read(first, result);
    quick.synchronize();  // hangs if it waited for the other one
    CHECK(result == std::vector<float>(3, 2.0F));
    testing::tell_double("gpu_double_let_go", slow.stream());
    carriers::hold_back(*group, slow.handle(), gpu_of(rank, 1));
    slow.read(second, result);
    slow.synchronize();
    CHECK(result == std::vector<float>(3, 4.0F));
  });
}

TEST_CASE("gpu: ranks that use their GPUs in another order are told so, with the tensor, and go on") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    const Framework first(gpu_of(rank, 0));
    const Framework second(gpu_of(rank, 1));
    const device::Memory a = first.filled(std::vector<float>(4, 1.0F));
    const device::Memory b = second.filled(std::vector<float>(4, 2.0F));
    submit_and_wait(runtime, sum_of("layer 0", first, a), first);
    // Rank 0 has its layer 1 on another GPU, and rank 1 on the same.
    const bool divides = rank == 0;
    const auto operation = sum_of("layer 1", divides ? second : first, divides ? b : a);
    runtime.run(operation, {});
    REQUIRE(operation->error != nullptr);
    CHECK(operation->error->kind() == ErrorKind::kMismatch);
    const std::string text = operation->error->what();
    for (const char* part : {"'layer 1'", "rank 0", "rank 1", "on GPU 2 of its own", "the GPU differs", "same order"}) {
      INFO(text);
      CHECK(text.find(part) != std::string::npos);
    }
    submit_and_wait(runtime, sum_of("layer 2", second, b), second);
    std::vector<float> result;
    second.read(b, result);
    second.synchronize();
    CHECK(result == std::vector<float>(4, 4.0F));
  });
}

TEST_CASE("gpu: a rank that has joined takes part on every GPU of the others") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    Runtime& runtime = cluster.runtime(rank);
    if (rank == 0) {
      for (const int of : {0, 1}) {
        const Framework framework(gpu_of(rank, of));
        const device::Memory tensor = framework.filled(std::vector<float>(4, 5.0F));
        submit_and_wait(runtime, sum_of("last " + std::to_string(of), framework, tensor), framework);
        std::vector<float> result;
        framework.read(tensor, result);
        framework.synchronize();
        CHECK(result == std::vector<float>(4, 5.0F));
      }
    }
    const auto join = std::make_shared<Operation>();
    join->join = true;
    runtime.submit(join);
    runtime.wait(*join, Runtime::kForever, {});
    CHECK(join->error == nullptr);
  });
}

TEST_CASE("gpu: a tensor on a GPU here and in the host's memory there is said to be so") {
  use_double();
  Cluster cluster({.ranks = 2});
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    const device::Memory there = framework.filled(std::vector<float>(4, 1.0F));
    std::vector<float> here(4, 1.0F);
    engine::Array array = framework.array(there, DType::kFloat32);
    if (rank == 1) array = {reinterpret_cast<std::byte*>(here.data()), array.shape, DType::kFloat32};
    const auto operation = engine::make_operation(allreduce("somewhere"), array, &array);
    cluster.runtime(rank).run(operation, {});
    REQUIRE(operation->error != nullptr);
    CHECK(std::string(operation->error->what()).find("some in the host's memory") != std::string::npos);
  });
}

}  // namespace
