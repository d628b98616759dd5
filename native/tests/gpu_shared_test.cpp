// Ranks that share a GPU, as threads of one process, which CUDA's IPC refuses and the double allows where it is told
// to: so sanitizers see all ranks. tests/gpu/test_shared.py has real processes.
#include <chrono>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "base/reduce.hpp"
#include "carriers/gpu/arenas.hpp"
#include "carriers/gpu/tensor.hpp"
#include "cluster.hpp"
#include "device/kernels.hpp"
#include "device/reduce.hpp"
#include "gpu_framework.hpp"

namespace {

using namespace ringcore;
using engine::Operation;
using testing::allreduce;
using testing::Cluster;
using testing::Framework;
using testing::tell_double;
using testing::use_double;

// Memory of this process may be opened in it.
class IpcEverywhere {
 public:
  IpcEverywhere() { ::setenv("GPU_DOUBLE_IPC", "2", 1); }
  ~IpcEverywhere() { ::unsetenv("GPU_DOUBLE_IPC"); }
  IpcEverywhere(const IpcEverywhere&) = delete;
  IpcEverywhere& operator=(const IpcEverywhere&) = delete;
};

testing::ClusterOptions ranks(int count) { return {.ranks = count}; }

// Runs until the condition holds.
template <class Condition>
void await(Condition condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::yield();
  }
}

// All warnings until the first one comes.
std::string log_of(Runtime& runtime) {
  REQUIRE(runtime.wait_for_attention(20 * kSecond));
  std::string text;
  for (const std::string& warning : runtime.take_attention().warnings) text += warning + "\n";
  return text;
}

std::vector<float> sum_of_all(Runtime& runtime, const Framework& framework, std::vector<float> values,
                              ReduceOp op = ReduceOp::kSum) {
  const std::string name = "sum of " + std::to_string(values.size());
  const device::Memory tensor = framework.tensor(values);
  const engine::Array array = framework.array(tensor, DType::kFloat32);
  const auto operation = engine::make_operation(allreduce(name, op), array, &array);
  runtime.run(operation, {});
  if (operation->error != nullptr) throw *operation->error;
  carriers::hold_back(*operation, framework.handle());
  framework.read(tensor, values);
  framework.synchronize();
  return values;
}

TEST_CASE("shared gpu: ranks of one process are refused by CUDA, and all go by the host") {
  use_double();
  Cluster cluster(ranks(2));
  cluster.run([&](Rank rank) {
    const Framework framework(0);
    const auto sums = sum_of_all(cluster.runtime(rank), framework, std::vector<float>(100, rank + 1.0F));
    CHECK(sums == std::vector<float>(100, 3));
    const std::string log = log_of(cluster.runtime(rank));
    CHECK(log.find("member 1 and member 0 share a GPU, and cannot meet in its memory: member 0: cuIpcOpenMemHandle: "
                   "invalid context") != std::string::npos);
  });
}

// What is written of it, of three sums.
std::string log_of_quantised_sums(Runtime& runtime, const Framework& framework) {
  std::vector<device::Memory> tensors;
  for (int i = 0; i < 3; ++i) {
    tensors.push_back(framework.filled(std::vector<float>(100, 1.0F)));
    const engine::Array array = framework.array(tensors.back(), DType::kFloat32);
    engine::Call call = allreduce("quantised " + std::to_string(i));
    call.compression = Compression::kInt8;
    testing::submit_and_wait(runtime, engine::make_operation(call, array, &array), framework);
  }
  framework.synchronize();
  return log_of(runtime);
}

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("gpu: that compression to integers does nothing there is said once, and beside what else there is to say") {
  use_double();
  const std::string told = "compression int8 does nothing for tensors of GPUs: they are reduced as they are. Remedy";
  for (const bool share : {false, true}) {
    CAPTURE(share);
    const IpcEverywhere everywhere;
    Cluster cluster(ranks(2));
    cluster.run([&](Rank rank) {
      const Framework framework(share ? 0 : rank);
      Runtime& runtime = cluster.runtime(rank);
      CHECK(sum_of_all(runtime, framework, std::vector<float>(10, 1.0F)) == std::vector<float>(10, 2.0F));
      const std::string before = share ? log_of(runtime) : "";
      CHECK(count_of(told, before) == 0);
      const std::string log = log_of_quantised_sums(runtime, framework);
      CHECK(count_of(told, log) == 1);
    });
    Cluster anew(ranks(2));
    anew.run([&](Rank rank) {
      const std::string log = log_of_quantised_sums(anew.runtime(rank), Framework(share ? 0 : rank));
      CHECK(count_of(told, log) == 1);
      CHECK(count_of("share a GPU", log) == (share ? 1 : 0));
    });
  }
}

TEST_CASE("shared gpu: sums, averages, groups and broadcasts in pieces, on one GPU and on two with NCCL between") {
  use_double();
  const IpcEverywhere everywhere;
  for (const auto& [count, gpus] : {std::pair(2, 1), std::pair(3, 1), std::pair(4, 2), std::pair(3, 2)}) {
    CAPTURE(count);
    CAPTURE(gpus);
    Cluster cluster(ranks(count));
    cluster.run([&, count = count, gpus = gpus](Rank rank) {
      const Framework framework(rank % gpus);
      Runtime& runtime = cluster.runtime(rank);
      const float all = static_cast<float>((1 << count) - 1);
      // The arena has 4 MiB.
      for (const std::size_t elements :
           {std::size_t{0}, std::size_t{1}, std::size_t{1001}, (std::size_t{9} << 18) + 5}) {
        std::vector<float> values(elements);
        std::vector<float> expected(elements);
        for (std::size_t i = 0; i < elements; ++i) {
          expected[i] = all * static_cast<float>(i % 97);
          values[i] = static_cast<float>((1 << rank) * (i % 97));
        }
        CHECK(sum_of_all(runtime, framework, values) == expected);
      }
      std::vector<std::vector<double>> values;
      std::vector<device::Memory> tensors;
      std::vector<std::shared_ptr<Operation>> parts;
      const std::string grouped = "group";
      engine::Call call = allreduce(grouped, ReduceOp::kAverage);
      call.prescale = static_cast<double>(count);
      for (int i = 0; i < 130; ++i) {
        values.emplace_back(i % 7 + 1, i + 64.0 * (1 << rank));
        tensors.push_back(framework.tensor(values.back()));
        const engine::Array array = framework.array(tensors.back(), DType::kFloat64);
        parts.push_back(engine::make_operation(call, array, &array));
      }
      const auto group = engine::make_group(grouped, std::move(parts));
      runtime.run(group, {});
      REQUIRE(group->error == nullptr);
      carriers::hold_back(*group, framework.handle());
      for (int i = 0; i < 130; ++i) {
        std::vector<double> result;
        framework.read(tensors[i], result);
        framework.synchronize();
        CHECK(result.back() == doctest::Approx(count * i + 64.0 * all));
      }
      for (int root = 0; root < count; ++root) {
        const std::string name = "from " + std::to_string(root);
        std::vector<float> sent((std::size_t{5} << 18) + 3, static_cast<float>(rank));
        const device::Memory tensor = framework.tensor(sent);
        const engine::Array array = framework.array(tensor, DType::kFloat32);
        const auto operation =
            engine::make_operation({.collective = Collective::kBroadcast, .name = name, .root = root}, array, &array);
        runtime.run(operation, {});
        REQUIRE(operation->error == nullptr);
        carriers::hold_back(*operation, framework.handle());
        framework.read(tensor, sent);
        framework.synchronize();
        CHECK(sent == std::vector<float>(sent.size(), static_cast<float>(root)));
      }
      const std::string log = log_of(runtime);
      CHECK(log.find("go through the memory of that GPU (CUDA IPC") != std::string::npos);
      CHECK((log.find("and NCCL between the GPUs") != std::string::npos) == (gpus > 1));
    });
  }
}

TEST_CASE("shared gpu: the host waits neither for its own GPU nor for the other ranks'") {
  use_double();
  const IpcEverywhere everywhere;
  Cluster cluster(ranks(2));
  cluster.run([&](Rank rank) {
    const Framework framework(0);
    std::vector<float> values(1000, static_cast<float>(rank + 1));
    if (rank == 1) tell_double("gpu_double_hold", framework.stream());
    const device::Memory tensor = framework.tensor(values);
    const engine::Array array = framework.array(tensor, DType::kFloat32);
    const std::string name = "held";
    const auto operation = engine::make_operation(allreduce(name), array, &array);
    cluster.runtime(rank).run(operation, {});
    REQUIRE(operation->error == nullptr);
    if (rank == 1) {
      CHECK_FALSE(carriers::has_ended(*operation));
      tell_double("gpu_double_let_go", framework.stream());
    }
    carriers::hold_back(*operation, framework.handle());
    framework.read(tensor, values);
    framework.synchronize();
    CHECK(values == std::vector<float>(1000, 3));
  });
}

TEST_CASE("shared gpu: a rank that has joined counts as nothing") {
  use_double();
  const IpcEverywhere everywhere;
  Cluster cluster(ranks(3));
  cluster.run([&](Rank rank) {
    const Framework framework(0);
    Runtime& runtime = cluster.runtime(rank);
    const auto value = static_cast<float>(rank + 2);
    CHECK(sum_of_all(runtime, framework, {value}, ReduceOp::kProduct) == std::vector<float>{24});
    if (rank > 0)
      CHECK(sum_of_all(runtime, framework, {value, value}, ReduceOp::kProduct) == std::vector<float>(2, 12));
    const auto join = std::make_shared<Operation>();
    join->join = true;
    runtime.run(join, {});
    CHECK(join->error == nullptr);
  });
}

TEST_CASE("shared gpu: a timeout lets all streams go on, also where a late rank still writes") {
  use_double();
  const IpcEverywhere everywhere;
  testing::ClusterOptions options = ranks(3);
  options.settings.timeout = kSecond / 2;
  Cluster cluster(std::move(options));
  cluster.run([&](Rank rank) {
    const Framework framework(0);
    Runtime& runtime = cluster.runtime(rank);
    sum_of_all(runtime, framework, {1});
    const device::Memory tensor = framework.filled(std::vector<float>(10, 1));
    const engine::Array array = framework.array(tensor, DType::kFloat32);
    if (rank == 2) tell_double("gpu_double_hold", framework.stream());
    const std::string name = "held";
    const auto operation = engine::make_operation(allreduce(name), array, &array);
    runtime.run(operation, {});
    CHECK(operation->error == nullptr);
    await([&] { return runtime.failure() != nullptr; });
    CHECK(runtime.failure()->kind() == ErrorKind::kTimeout);
    if (rank == 2) tell_double("gpu_double_let_go", framework.stream());
    carriers::hold_back(*operation, framework.handle());
    framework.synchronize();
  });
}

// Who leaves after an error writes smaller values over those that let the stream of another one go on.
TEST_CASE("shared gpu: what a late rank writes holds nobody back again") {
  use_double();
  const IpcEverywhere everywhere;
  device::Device& gpu = device::Device::of(0);
  using carriers::SharedArenas;
  const auto first_stream = std::make_shared<const device::Stream>(gpu);
  const auto second_stream = std::make_shared<const device::Stream>(gpu);
  SharedArenas first(first_stream, 0, 4096);
  SharedArenas second(second_stream, 1, 4096);
  const device::Device::Current current(gpu);
  await([&] { return first.made() && second.made(); });
  const std::vector notices{first.notice(), second.notice()};
  first.open(notices);
  second.open(notices);
  REQUIRE(first.notice().problem == std::string());
  tell_double("gpu_double_hold", second_stream->get());
  second.write(0, SharedArenas::packed(1), 1);
  first.wait(SharedArenas::packed(1), 1);
  const device::Event passed(gpu, first_stream->get());
  tell_double("gpu_double_hold", first_stream->get());
  first.wait(SharedArenas::packed(1), 2);
  const device::Event through(gpu, first_stream->get());
  first.abort(2);
  await([&] { return passed.reached(); });
  second.abort(1);
  tell_double("gpu_double_let_go", second_stream->get());
  const device::Event written(gpu, second_stream->get());
  await([&] { return written.reached(); });
  tell_double("gpu_double_let_go", first_stream->get());
  await([&] { return through.reached(); });
}

TEST_CASE("shared gpu: memory that others have open is used again only when streams have come to its end") {
  use_double();
  const device::Device::Current current(device::Device::of(1));
  device::Device& gpu = device::Device::of(1);
  const device::Stream stream(gpu);
  constexpr std::size_t kBytes = 12345;
  const device::ExportedMemory memory = device::take_exported(gpu, kBytes);
  tell_double("gpu_double_hold", stream.get());
  const auto ended = std::make_shared<const device::Event>(gpu, stream.get());
  device::retire(ended, memory, {});
  const device::ExportedMemory other = device::take_exported(gpu, kBytes);
  CHECK(other.pointer != memory.pointer);
  tell_double("gpu_double_let_go", stream.get());
  await([&] { return ended->reached(); });
  CHECK(device::take_exported(gpu, kBytes).pointer == memory.pointer);
}

}  // namespace
