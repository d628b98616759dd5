// What ringcore adds to NCCL on one GPU, and how its kernels compare with a copy by the driver.
//
//   ringcore_gpu_benchmark [CUDA's library] [NCCL's] [NVRTC's]     JSON lines on standard output
//
// One rank on one GPU. "launch": host time from the call until the collective is in a stream, of ncclAllReduce itself
// and of an operation that goes through the engine. "pack", "unpack": bytes written a second by a kernel over many
// tensors, as a fraction of cuMemcpyDtoDAsync over the same bytes. "replay": host time of the launch of a CUDA graph that
// an operation of the engine was captured into, and the time until it has run, beside the engine's own launch. "register":
// how long it takes to get memory that NCCL knows, and to give it back, and the launch of an allreduce there.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/library.hpp"
#include "carriers/gpu/tensor.hpp"
#include "carriers/standard.hpp"
#include "device/communicator.hpp"
#include "device/kernels.hpp"
#include "device/libraries.hpp"
#include "runtime/runtime.hpp"

namespace {

using namespace ringcore;
using Clock = std::chrono::steady_clock;

constexpr int kRepeats = 200;
constexpr std::size_t kLarge = 1 << 20;
constexpr int kCopies = 20;

double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

void synchronize(device::cuda::Stream stream) {
  device::check_cuda(device::driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Host time of one call; the stream is idle before each.
double launch_us(device::cuda::Stream stream, std::size_t bytes, const std::function<void()>& call) {
  std::vector<double> times;
  const int repeats = bytes < kLarge ? kRepeats : kRepeats / 10;
  for (int i = 0; i < repeats; ++i) {
    synchronize(stream);
    const auto begin = Clock::now();
    call();
    times.push_back(microseconds(Clock::now() - begin));
  }
  return median(times);
}

void measure_launches(device::Device& gpu) {
  device::Communicator communicator(gpu, device::Communicator::make_id(), 0, 1);
  while (!communicator.ready()) std::this_thread::yield();
  const device::Stream stream(gpu);
  RuntimeConfig config;
  config.engine.links.resize(1);
  config.engine.host_of = {0};
  config.engine.make_carriers = carriers::standard();
  Runtime runtime(std::move(config));
  for (const std::size_t bytes : {8UL, 1024UL, 64UL << 10, 1UL << 20, 16UL << 20, 64UL << 20, 256UL << 20}) {
    const std::uint64_t count = bytes / 4;
    const device::Memory memory(gpu, bytes, stream.get());
    const double bare = launch_us(stream.get(), bytes, [&] {
      communicator.all_reduce(memory.data(), memory.data(), count, device::nccl::kFloat32, device::nccl::kSum,
                              stream.get());
      while (!communicator.ready()) {
      }
    });
    const engine::Array array{memory.data(), engine::Shape::of({&count, 1}), DType::kFloat32, gpu.ordinal(),
                              std::bit_cast<std::uintptr_t>(stream.get())};
    const std::string name = "allreduce " + std::to_string(bytes);
    const double ours = launch_us(stream.get(), bytes, [&] {
      const auto operation =
          engine::make_operation({.collective = Collective::kAllreduce, .name = name}, array, &array);
      runtime.run(operation, {});
      if (operation->error != nullptr) throw *operation->error;
    });
    std::printf("{\"case\": \"launch\", \"bytes\": %zu, \"nccl_us\": %.2f, \"ringcore_us\": %.2f, \"over_us\": %.2f}\n",
                bytes, bare, ours, ours - bare);
  }
}

void measure_registrations(device::Device& gpu) {
  using device::Registering;
  device::Communicator communicator(gpu, device::Communicator::make_id(), 0, 1);
  const auto stream = std::make_shared<const device::Stream>(gpu);
  const auto until_ready = [&] {
    while (!communicator.ready()) std::this_thread::yield();
  };
  until_ready();
  for (const auto& [how, name] : {std::pair{Registering::kLocal, "local"}, {Registering::kWindow, "window"}}) {
    if (how > device::Communicator::registering()) return;
    for (const std::size_t bytes : {2UL << 20, 64UL << 20}) {
      const auto begin = Clock::now();
      auto memory = std::make_shared<const device::Memory>(device::Memory::of_nccl(bytes, stream));
      communicator.register_memory(memory, how);
      until_ready();
      const double registered = microseconds(Clock::now() - begin);
      const double launched = launch_us(stream->get(), bytes, [&] {
        communicator.all_reduce(memory->data(), memory->data(), bytes / 4, device::nccl::kFloat32, device::nccl::kSum,
                                stream->get());
        until_ready();
      });
      synchronize(stream->get());
      const auto end = Clock::now();
      communicator.deregister_memory(*memory);
      memory.reset();
      std::printf(
          "{\"case\": \"register\", \"bytes\": %zu, \"how\": \"%s\", \"register_us\": %.2f, \"launch_us\": %.2f, "
          "\"free_us\": %.2f}\n",
          bytes, name, registered, launched, microseconds(Clock::now() - end));
    }
  }
}

// What a framework uses to capture.
struct Graphs {
  explicit Graphs(const std::vector<std::string>& names) {
    const Library library("CUDA's driver", names);
    library.load("cuStreamBeginCapture_v2", begin);
    library.load("cuStreamEndCapture", end);
    library.load("cuGraphInstantiateWithFlags", instantiate);
    library.load("cuGraphLaunch", launch);
    library.load("cuGraphExecDestroy", destroy_executable);
    library.load("cuGraphDestroy", destroy);
  }
  int (*begin)(device::cuda::Stream stream, int mode);
  int (*end)(device::cuda::Stream stream, void** graph);
  int (*instantiate)(void** executable, void* graph, unsigned long long flags);
  int (*launch)(void* executable, device::cuda::Stream stream);
  int (*destroy_executable)(void* executable);
  int (*destroy)(void* graph);
};

void measure_replays(device::Device& gpu, const Graphs& graphs) {
  const device::Stream stream(gpu);
  RuntimeConfig config;
  config.engine.links.resize(1);
  config.engine.host_of = {0};
  config.engine.make_carriers = carriers::standard();
  Runtime runtime(std::move(config));
  for (const std::size_t bytes : {1024UL, 1UL << 20, 64UL << 20}) {
    const std::uint64_t count = bytes / 4;
    const device::Memory memory(gpu, bytes, stream.get());
    const engine::Array array{memory.data(), engine::Shape::of({&count, 1}), DType::kFloat32, gpu.ordinal(),
                              std::bit_cast<std::uintptr_t>(stream.get())};
    const std::string name = "replay " + std::to_string(bytes);
    const auto run = [&] {
      const auto operation =
          engine::make_operation({.collective = Collective::kAllreduce, .name = name}, array, &array);
      runtime.run(operation, {});
      if (operation->error != nullptr) throw *operation->error;
      carriers::hold_back(*operation, array.stream);
    };
    const double ours = launch_us(stream.get(), bytes, run);  // connects as well
    synchronize(stream.get());
    void* graph = nullptr;
    void* executable = nullptr;
    device::check_cuda(graphs.begin(stream.get(), 0), "cuStreamBeginCapture");
    run();
    device::check_cuda(graphs.end(stream.get(), &graph), "cuStreamEndCapture");
    device::check_cuda(graphs.instantiate(&executable, graph, 0), "cuGraphInstantiateWithFlags");
    const auto replay = [&] { device::check_cuda(graphs.launch(executable, stream.get()), "cuGraphLaunch"); };
    const double launched = launch_us(stream.get(), bytes, replay);
    const double ended = launch_us(stream.get(), bytes, [&] {
      replay();
      synchronize(stream.get());
    });
    std::printf(
        "{\"case\": \"replay\", \"bytes\": %zu, \"ringcore_us\": %.2f, \"replay_us\": %.2f, \"ended_us\": %.2f}\n",
        bytes, ours, launched, ended);
    graphs.destroy_executable(executable);
    graphs.destroy(graph);
  }
}

// Bytes a second.
double bandwidth(device::cuda::Stream stream, std::size_t bytes, const std::function<void()>& call) {
  call();
  synchronize(stream);
  const auto begin = Clock::now();
  for (int i = 0; i < kCopies; ++i) call();
  synchronize(stream);
  return static_cast<double>(bytes) * kCopies / (microseconds(Clock::now() - begin) * 1e-6);
}

void measure_kernels(device::Device& gpu) {
  const device::Stream stream(gpu);
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const device::Memory from(gpu, kBytes, stream.get());
  const device::Memory to(gpu, kBytes, stream.get());
  const double copy = bandwidth(stream.get(), kBytes, [&] {
    device::check_cuda(device::driver().cuMemcpyDtoDAsync_v2(device::pointer(to.data()), device::pointer(from.data()),
                                                             kBytes, stream.get()),
                       "cuMemcpyDtoDAsync");
  });
  for (const std::size_t tensor : {64UL << 10, 1UL << 20, 16UL << 20}) {
    for (const auto& [dtype, factor] :
         {std::pair{DType::kFloat32, 1.0}, {DType::kFloat32, 0.5}, {DType::kFloat16, 0.5}}) {
      std::vector<device::Segment> segments;
      for (std::size_t at = 0; at < kBytes; at += tensor) {
        segments.push_back(
            {device::pointer(from.data() + at), device::pointer(to.data() + at), tensor / size_of(dtype)});
      }
      const double packed =
          bandwidth(stream.get(), kBytes, [&] { device::copy_segments(gpu, stream.get(), dtype, segments, factor); });
      std::printf(
          "{\"case\": \"pack\", \"tensor_bytes\": %zu, \"dtype\": \"%s\", \"factor\": %g, "
          "\"gigabytes_per_s\": %.1f, \"of_copy\": %.3f, \"kernels\": %s}\n",
          tensor, std::string(name_of(dtype)).c_str(), factor, packed / 1e9, packed / copy,
          gpu.kernels() != nullptr ? "true" : "false");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  device::LibraryPaths paths;
  if (argc > 1) paths.cuda = {argv[1]};
  if (argc > 2) paths.nccl = {argv[2]};
  if (argc > 3) paths.nvrtc = {argv[3]};
  device::set_library_paths(paths);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    device::Device& gpu = device::Device::of(0);
    const device::Device::Current current(gpu);
    measure_launches(gpu);
    measure_registrations(gpu);
    measure_replays(gpu, Graphs(paths.cuda));
    measure_kernels(gpu);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
