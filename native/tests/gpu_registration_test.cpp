// Memory that buckets are packed into: registered with NCCL where it can, at the same place on all ranks, and let go of
// when the GPU uses it no more. The double ends the process where NCCL would not forgive.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "anew.hpp"
#include "carriers/gpu/launcher.hpp"
#include "carriers/gpu/tensor.hpp"
#include "cluster.hpp"
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

constexpr std::size_t kSmall = 3;  // elements
constexpr std::size_t kLarge = 1000 * 1000;  // two of them are more than what is registered at least

void wait_until(const std::function<bool()>& reached, const char* what) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!reached()) {
    if (std::chrono::steady_clock::now() > limit) throw std::runtime_error(what);
    std::this_thread::yield();
  }
}

int allocations() { return call_double("gpu_double_allocations"); }

void wait_for_allocations(int count) {
  wait_until([count] { return allocations() == count; }, "memory of NCCL is not freed");
}

// How the double has registered what collectives ran on: what this version of NCCL can.
int registered_uses() { return call_double("gpu_double_uses", 1) + call_double("gpu_double_uses", 2); }

bool nccl_registers() {
  const device::Nccl& nccl = device::nccl_api();
  return nccl.ncclMemAlloc != nullptr;
}

bool gives_windows() {
  return std::getenv("GPU_DOUBLE_WINDOWS") == nullptr && device::nccl_api().ncclCommWindowRegister != nullptr;
}

testing::ClusterOptions with_ranks(int ranks, Nanoseconds timeout = 20 * kSecond) {
  testing::ClusterOptions options{.ranks = ranks};
  options.settings.execution.fusion_threshold_bytes = 32 << 20;
  options.settings.timeout = timeout;
  return options;
}

// Two tensors that are reduced as one bucket.
class Pair {
 public:
  Pair(const Framework& framework, std::size_t elements, float value) : framework_(framework) {
    for (device::Memory& tensor : tensors_) tensor = framework.filled(std::vector<float>(elements, value));
  }

  std::shared_ptr<Operation> group(const std::string& name) const {
    std::vector<std::shared_ptr<Operation>> parts;
    for (const device::Memory& tensor : tensors_) {
      const engine::Array array = framework_.array(tensor, DType::kFloat32);
      parts.push_back(engine::make_operation(allreduce(name), array, &array));
    }
    return engine::make_group(name, std::move(parts));
  }

  void check(float value) const {
    for (const device::Memory& tensor : tensors_) {
      std::vector<float> values;
      framework_.read(tensor, values);
      framework_.synchronize();
      CHECK(values == std::vector<float>(values.size(), value));
    }
  }

 private:
  const Framework& framework_;
  device::Memory tensors_[2];
};

TEST_CASE("gpu: buckets are reduced in memory that NCCL knows, which grows and is let go of") {
  use_double();
  {
    const int before = registered_uses();
    Cluster cluster(with_ranks(3));
    cluster.run([&](Rank rank) {
      const Framework framework(rank);
      for (const std::size_t elements : {std::size_t{0}, kSmall, kLarge, kSmall, 2 * kLarge}) {
        const Pair pair(framework, elements, static_cast<float>(rank));
        submit_and_wait(cluster.runtime(rank), pair.group("pair"), framework);
        pair.check(3);
      }
    });
    CHECK(registered_uses() - before == (nccl_registers() ? 3 * 5 : 0));
    wait_for_allocations(nccl_registers() ? 3 : 0);  // what was outgrown is free
  }
  wait_for_allocations(0);
}

TEST_CASE("gpu: a rank that has joined takes part when that memory is registered") {
  use_double();
  Cluster cluster(with_ranks(3));
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    Runtime& runtime = cluster.runtime(rank);
    const Pair small(framework, kSmall, 1);
    submit_and_wait(runtime, small.group("small"), framework);
    small.check(3);
    if (rank != 1) {
      const Pair large(framework, kLarge, 1);
      submit_and_wait(runtime, large.group("large"), framework);
      large.check(2);
    }
    const auto join = std::make_shared<Operation>();
    join->join = true;
    runtime.run(join, {});
    CHECK(join->error == nullptr);
  });
}

TEST_CASE("gpu: memory is registered in the way that every rank's NCCL knows") {
  use_double();
  if (!gives_windows()) return;
  const SteadyClock clock;
  std::vector<std::unique_ptr<carriers::Launcher>> launchers;
  std::vector<carriers::Launcher::Facts> facts;
  for (const Rank rank : {0, 1}) {
    launchers.push_back(std::make_unique<carriers::Launcher>(
        carriers::Launcher::Config{.device = rank, .self = rank, .size = 2, .packed_bytes = 1 << 20}, clock));
    std::memcpy(&facts.emplace_back(), launchers.back()->message().data(), sizeof(carriers::Launcher::Facts));
  }
  facts[1].registers = device::Registering::kLocal;
  const int before = call_double("gpu_double_uses", 1);
  const auto descriptor = std::make_shared<engine::Descriptor>();
  descriptor->collective = Collective::kAllreduce;
  descriptor->dtype = DType::kFloat32;
  descriptor->shape = {.dims = 1, .extent = {kSmall}};
  for (const auto& launcher : launchers) {
    launcher->hear(std::as_bytes(std::span(facts)));
    REQUIRE(launcher->agreed());
    CHECK(launcher->way().empty());
    launcher->expect();
  }
  engine::Task bucket;
  bucket.descriptors = {descriptor, descriptor};
  carriers::Launcher::Launch launches[] = {{.task = bucket}, {.task = bucket}};
  const auto ended = [&] {
    bool all = true;
    for (std::size_t i = 0; i < launchers.size(); ++i) {
      launchers[i]->forget_ended();
      if (!launches[i].ended) launchers[i]->progress(launches[i]);
      all = all && launches[i].ended && launchers[i]->drained();
    }
    return all;
  };
  wait_until(ended, "the bucket is not reduced");
  CHECK(call_double("gpu_double_uses", 1) - before == 2);
}

TEST_CASE("gpu: memory grows while the GPU uses what it had before, and the host waits for neither") {
  use_double();
  Cluster cluster(with_ranks(2));
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    Runtime& runtime = cluster.runtime(rank);
    const Pair small(framework, kSmall, 1);
    const Pair large(framework, kLarge, 1);
    tell_double("gpu_double_hold", framework.stream());
    submit_and_wait(runtime, small.group("small"), framework);
    const auto grown = large.group("large");
    submit_and_wait(runtime, grown, framework);
    CHECK_FALSE(carriers::has_ended(*grown));
    if (nccl_registers()) CHECK(allocations() >= 2);
    tell_double("gpu_double_let_go", framework.stream());
    small.check(2);
    large.check(2);
  });
}

TEST_CASE("gpu: a graph has nothing of the memory that is registered") {
  use_double();
  Cluster cluster(with_ranks(2));
  cluster.run([&](Rank rank) {
    const Framework framework(rank);
    Runtime& runtime = cluster.runtime(rank);
    const Pair pair(framework, kSmall, 1);
    submit_and_wait(runtime, pair.group("packed"), framework);
    framework.synchronize();
    Capture graph(framework.stream());
    submit_and_wait(runtime, pair.group("captured"), framework);
    REQUIRE(graph.end() == 0);
    graph.launch();
    pair.check(4);
    const Pair large(framework, kLarge, 1);
    submit_and_wait(runtime, large.group("large"), framework);  // the first buffer goes
    large.check(2);
    graph.launch();
    pair.check(8);
  });
}

// What the others wait for in vain is ended by the timeout, as anything else is.
TEST_CASE("gpu: a rank that does not come to register memory fails the operation everywhere") {
  use_double();
  if (!gives_windows()) return;
  tell_double("gpu_double_stay_away", 1);
  std::atomic<int> timeouts = 0;
  {
    Cluster cluster(with_ranks(2, kSecond));
    cluster.run([&](Rank rank) {
      const Framework framework(rank);
      const Pair pair(framework, kSmall, 1);
      const auto group = pair.group("pair");
      cluster.runtime(rank).run(group, {});
      REQUIRE(group->error != nullptr);
      const std::string text = group->error->what();
      if (group->error->kind() == ErrorKind::kTimeout) {
        CHECK(text.find("waits for NCCL to connect, or to register") != std::string::npos);
        ++timeouts;
      } else {  // NCCL tells of the rank whose timeout was first
        CHECK(group->error->kind() == ErrorKind::kPeerLost);
      }
    });
  }
  CHECK(timeouts > 0);
  tell_double("gpu_double_stay_away", -1);
  wait_for_allocations(0);
}

TEST_CASE("gpu: a rank that leaves while memory is registered is noticed at once") {
  use_double();
  if (!gives_windows()) return;
  tell_double("gpu_double_stay_away", 1);
  {
    Cluster cluster(with_ranks(2));
    cluster.run([&](Rank rank) {
      const Framework framework(rank);
      const Pair pair(framework, kSmall, 1);
      const auto group = pair.group("pair");
      Runtime& runtime = cluster.runtime(rank);
      if (rank == 1) {
        runtime.submit(group);
        wait_until([] { return allocations() == 2; }, "the ranks do not register");
        runtime.leave("out of data");
        return;
      }
      runtime.run(group, {});
      REQUIRE(group->error != nullptr);
      CHECK(group->error->kind() == ErrorKind::kPeerLost);  // by its farewell, or by NCCL
    });
  }
  tell_double("gpu_double_stay_away", -1);
  wait_for_allocations(0);
}

TEST_CASE("gpu: memory that the GPU has work for when the job fails is freed behind that") {
  use_double();
  std::vector<std::unique_ptr<Framework>> frameworks;
  for (const Rank rank : {0, 1}) frameworks.push_back(std::make_unique<Framework>(rank));
  std::vector<std::unique_ptr<Pair>> pairs;
  for (const auto& framework : frameworks) pairs.push_back(std::make_unique<Pair>(*framework, kSmall, 1));
  {
    Cluster cluster(with_ranks(2));
    cluster.run([&](Rank rank) {
      tell_double("gpu_double_hold", frameworks[rank]->stream());
      submit_and_wait(cluster.runtime(rank), pairs[rank]->group("held"), *frameworks[rank]);
      cluster.runtime(rank).leave("gives up");
    });
  }
  CHECK(allocations() == (nccl_registers() ? 2 : 0));
  for (const auto& framework : frameworks) tell_double("gpu_double_let_go", framework->stream());
  wait_for_allocations(0);
  for (const auto& framework : frameworks) framework->synchronize();
}

// This program's tests of GPUs, in a process with another NCCL.
void run_with(const std::vector<std::string>& environment) {
  if (std::getenv("RINGCORE_TEST_GPU_DOUBLE") != nullptr) return;  // it is that process
  const pid_t child = ::fork();
  if (child == 0) {
    for (const std::string& setting : environment) ::putenv(const_cast<char*>(setting.c_str()));
    ::alarm(200);  // whatever it waits for
    testing::begin_anew("-tc=gpu:*");
    ::_exit(127);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("gpu: with an NCCL that registers nothing") {
  run_with({"RINGCORE_TEST_GPU_DOUBLE=" RINGCORE_GPU_DOUBLE_NCCL_2_18, "GPU_DOUBLE_NCCL_VERSION=21805"});
}

TEST_CASE("gpu: with an NCCL that has no windows") {
  run_with({"RINGCORE_TEST_GPU_DOUBLE=" RINGCORE_GPU_DOUBLE_NCCL_2_26, "GPU_DOUBLE_NCCL_VERSION=22602"});
}

TEST_CASE("gpu: with GPUs that NCCL gives no windows on") {
  run_with({"RINGCORE_TEST_GPU_DOUBLE=" RINGCORE_GPU_DOUBLE, "GPU_DOUBLE_WINDOWS=0"});
}

}  // namespace
