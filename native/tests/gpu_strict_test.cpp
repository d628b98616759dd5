// What the real CUDA and NCCL make of a host that relies on more than they promise: calls that wait, errors that every
// call reports, versions and GPUs that do not go together.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "carriers/gpu/launcher.hpp"
#include "carriers/gpu/tensor.hpp"
#include "cluster.hpp"
#include "device/device.hpp"
#include "gpu_framework.hpp"

namespace {

using namespace ringcore;
using engine::Operation;
using testing::allreduce;
using testing::call_double;
using testing::Cluster;
using testing::Framework;
using testing::submit_and_wait;
using testing::tell_double;
using testing::use_double;

template <class Condition>
void wait_until(Condition holds, const char* what) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > limit) throw std::runtime_error(std::string("in vain: ") + what);
    std::this_thread::yield();
  }
}

// Two operations on integers of 16 bits, which NCCL does not know: the engine works on the first one, and the second
// waits for its framework.
void exchange(Runtime& runtime, Rank rank) {
  const Framework first(rank);
  const Framework second(rank);
  const device::Memory dealt = first.filled(std::vector<std::int16_t>(3000, static_cast<std::int16_t>(rank)));
  const device::Memory summed = second.filled(std::vector<std::int16_t>(3000, 1));
  const std::string names[] = {"dealt", "summed"};
  const engine::Array in_place = second.array(summed, DType::kInt16);
  auto deals = engine::make_operation({.collective = Collective::kReduceScatter, .name = names[0]},
                                      first.array(dealt, DType::kInt16), nullptr);
  auto sums = engine::make_operation(allreduce(names[1]), in_place, &in_place);
  tell_double("gpu_double_hold", first.stream());
  tell_double("gpu_double_hold", second.stream());
  runtime.submit(deals);
  runtime.submit(sums);
  wait_until([&] { return sums->state.load() >= engine::OperationState::kReleased; }, "both are released");
  tell_double("gpu_double_let_go", first.stream());
  auto done = std::async(std::launch::async, [&] { return runtime.wait(*deals, Runtime::kForever, {}); });
  CHECK(done.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  tell_double("gpu_double_let_go", second.stream());
  CHECK(done.get());
  CHECK(runtime.wait(*sums, Runtime::kForever, {}));
  CHECK(deals->error == nullptr);
  CHECK(sums->error == nullptr);
  carriers::hold_back(*deals, first.handle());
  carriers::hold_back(*sums, second.handle());
  second.synchronize();
  std::vector<std::int16_t> result;
  first.read(carriers::gpu_tensor(*deals)->result, result);
  first.synchronize();
  CHECK(result == std::vector<std::int16_t>(1500, 1));
  // Their memory in the host is free for the next ones.
  const std::weak_ptr<Operation> ended[] = {deals, sums};
  deals.reset();
  sums.reset();
  wait_until([&] { return ended[0].expired() && ended[1].expired(); }, "the engine forgets them");
}

TEST_CASE("gpu: the host does not wait for the GPU where tensors go through its memory") {
  use_double();
  Cluster cluster({.ranks = 2});
  std::barrier both(2);
  std::vector<std::future<void>> ranks;
  for (Rank rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&cluster, &both, rank] {
      exchange(cluster.runtime(rank), rank);  // allocates what the next one uses again
      both.arrive_and_wait();
      if (rank == 0) tell_double("gpu_double_wait", 1);
      both.arrive_and_wait();
      exchange(cluster.runtime(rank), rank);
    }));
  }
  for (auto& rank : ranks) rank.get();
  tell_double("gpu_double_wait", 0);
}

// CUDA reports the failure of a kernel in whatever is called next, also in what makes a context current.
TEST_CASE("gpu: a GPU that fails ends every operation with an error, on the GPU and in the host") {
  use_double();
  Cluster cluster({.ranks = 2});
  static const std::vector<float> ones(10, 1);  // a stream that was let go at the end may copy it later
  std::vector<std::unique_ptr<Framework>> frameworks(2);
  std::atomic<int> launched = 0;
  cluster.run([&](Rank rank) {
    frameworks[rank] = std::make_unique<Framework>(rank);
    const Framework& framework = *frameworks[rank];
    Runtime& runtime = cluster.runtime(rank);
    const device::Memory tensor = framework.filled(ones);
    const engine::Array array = framework.array(tensor, DType::kFloat32);
    const std::string name = "before";
    tell_double("gpu_double_hold", framework.stream());
    device::Memory held = framework.tensor(ones);
    runtime.run(engine::make_operation(allreduce(name), array, &array), {});
    if (++launched == 2) tell_double("gpu_double_break", 700);
    std::vector<float> values(10, 1);
    const std::uint64_t count = values.size();
    const engine::Array in_host{reinterpret_cast<std::byte*>(values.data()), engine::Shape::of({&count, 1}),
                                DType::kFloat32};
    // The failure is noticed between two of these.
    std::shared_ptr<const Error> error;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (int i = 0; error == nullptr; ++i) {
      if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("nobody notices that the GPU has failed");
      const std::string step = "step " + std::to_string(i);
      try {
        const auto operation = engine::make_operation(allreduce(step), in_host, &in_host);
        runtime.run(operation, {});
        error = operation->error;
      } catch (const Error& thrown) {
        error = std::make_shared<const Error>(thrown);
      }
    }
    CHECK(error->kind() == ErrorKind::kResource);
    CHECK(std::string(error->what()).find("(CUDA error 700)") != std::string::npos);
  });
  tell_double("gpu_double_break", 0);
  for (const auto& framework : frameworks) tell_double("gpu_double_let_go", framework->stream());
}

// What an aborted communicator has not yet sent to other hosts is lost.
TEST_CASE("gpu: who leaves when all has ended does not abort what others still receive") {
  use_double();
  const int before = call_double("gpu_double_aborts");
  {
    Cluster cluster({.ranks = 2});
    cluster.run([&](Rank rank) {
      const Framework framework(rank);
      const device::Memory tensor = framework.filled(std::vector<float>(10, 1));
      const engine::Array array = framework.array(tensor, DType::kFloat32);
      const std::string name = "last";
      submit_and_wait(cluster.runtime(rank), engine::make_operation(allreduce(name), array, &array), framework);
      framework.synchronize();
      cluster.runtime(rank).leave("");
    });
  }
  CHECK(call_double("gpu_double_aborts") == before);
}

// As with CUDA 12.8 and a B300 (sm_103), or a DGX Spark (sm_121).
TEST_CASE("gpu: kernels are compiled for a GPU that is younger than NVRTC") {
  use_double();
  for (const auto& [capability, ordinal] : {std::pair{"103", 6}, {"121", 7}}) {
    CAPTURE(capability);
    ::setenv("GPU_DOUBLE_CAPABILITY", capability, 1);
    CHECK(device::Device::of(ordinal).kernels() != nullptr);
  }
  ::unsetenv("GPU_DOUBLE_CAPABILITY");
}

carriers::Launcher::Facts facts_of(int version, const char* uuid, const char* address) {
  carriers::Launcher::Facts facts;
  facts.nccl_version = version;
  facts.has_kernels = 1;
  std::strncpy(facts.uuid, uuid, sizeof(facts.uuid));
  std::strncpy(facts.address, address, sizeof(facts.address));
  return facts;
}

TEST_CASE("gpu: ranks that NCCL would refuse go by way of the host, and are told why") {
  use_double();
  const SteadyClock clock;
  const auto agreed = [&](const carriers::Launcher::Facts& a, const carriers::Launcher::Facts& b) {
    carriers::Launcher launcher({.device = 0, .self = 0, .size = 2, .packed_bytes = 1 << 20}, clock);
    const carriers::Launcher::Facts facts[] = {a, b};
    launcher.hear(std::as_bytes(std::span(facts)));
    REQUIRE(launcher.agreed());
    return launcher.way();
  };
  CHECK(agreed(facts_of(22707, "a", "0000:10:00.0"), facts_of(22707, "b", "0000:20:00.0")).empty());
  CHECK(agreed(facts_of(22707, "a", "0000:10:00.0"), facts_of(22907, "b", "0000:20:00.0"))
            .find("member 0 has NCCL 2.27.7 and member 1 NCCL 2.29.7") != std::string::npos);
  // Two instances (MIG) of one GPU: NCCL tells GPUs apart by their place on the bus, since 2.30 by their UUID.
  CHECK(agreed(facts_of(22907, "a", "0000:10:00.0"), facts_of(22907, "b", "0000:10:00.0"))
            .find("member 1 and member 0 use parts of one GPU") != std::string::npos);
  CHECK(agreed(facts_of(23003, "a", "0000:10:00.0"), facts_of(23003, "b", "0000:10:00.0")).empty());
  // Where averages are computed matters as much.
  auto bare = facts_of(22907, "b", "0000:20:00.0");
  bare.has_kernels = 0;
  CHECK(agreed(facts_of(22907, "a", "0000:10:00.0"), bare).find("member 1 has no kernels") != std::string::npos);
}

}  // namespace
