// What tests of GPUs have in place of a framework: streams, tensors and graphs on the test double.
#pragma once

#include <bit>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <dlfcn.h>

#include <doctest/doctest.h>

#include "carriers/gpu/tensor.hpp"
#include "device/libraries.hpp"
#include "runtime/runtime.hpp"

namespace ringcore::testing {

// Of another version of NCCL where the environment says so.
inline const char* double_path() {
  const char* other = std::getenv("RINGCORE_TEST_GPU_DOUBLE");
  return other == nullptr ? RINGCORE_GPU_DOUBLE : other;
}

inline void use_double() {
  const std::string path = double_path();
  device::set_library_paths({{path}, {path}, {path}});
}

// A function of the double that the engine does not use.
template <class... Arguments>
int call_double(const char* function, Arguments... arguments) {
  void* library = ::dlopen(double_path(), RTLD_NOW);
  return reinterpret_cast<int (*)(Arguments...)>(::dlsym(library, function))(arguments...);
}

// One that no library of NVIDIA has.
template <class Argument>
void tell_double(const char* function, Argument argument) {
  void* library = ::dlopen(double_path(), RTLD_NOW);
  reinterpret_cast<void (*)(Argument)>(::dlsym(library, function))(argument);
}

// Captures what a stream is given, as torch.cuda.graph does: in the mode in which any unsafe call of the process ends it.
class Capture {
 public:
  explicit Capture(device::cuda::Stream stream) : stream_(stream) {
    REQUIRE(call_double("cuStreamBeginCapture_v2", stream, /*global*/ 0) == 0);
  }
  // CUDA's result.
  int end() {
    void* graph = nullptr;
    const int result = call_double("cuStreamEndCapture", stream_, &graph);
    if (result != 0) return result;
    REQUIRE(call_double("cuGraphInstantiateWithFlags", &executable_, graph, 0ULL) == 0);
    return call_double("cuGraphDestroy", graph);
  }
  void launch() const { REQUIRE(call_double("cuGraphLaunch", executable_, stream_) == 0); }
  ~Capture() {
    if (executable_ != nullptr) call_double("cuGraphExecDestroy", executable_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

 private:
  device::cuda::Stream stream_;
  void* executable_ = nullptr;
};

// What a framework has on the GPU of a rank: a stream, and tensors whose values are made in it.
class Framework {
 public:
  explicit Framework(int ordinal) : device_(device::Device::of(ordinal)), stream_(device_) {}

  template <class T>
  device::Memory tensor(const std::vector<T>& values) const {
    const device::Device::Current current(device_);
    device::Memory memory(device_, values.size() * sizeof(T), stream_.get());
    device::check_cuda(device::driver().cuMemcpyHtoDAsync_v2(device::pointer(memory.data()), values.data(),
                                                             memory.size(), stream_.get()),
                       "copy to the GPU");
    return memory;
  }

  // Waits for that.
  template <class T>
  device::Memory filled(const std::vector<T>& values) const {
    device::Memory memory = tensor(values);
    synchronize();
    return memory;
  }

  // Other values, when the stream has come so far.
  template <class T>
  void write(const device::Memory& memory, const std::vector<T>& values) const {
    const device::Device::Current current(device_);
    device::check_cuda(device::driver().cuMemcpyHtoDAsync_v2(device::pointer(memory.data()), values.data(),
                                                             memory.size(), stream_.get()),
                       "copy to the GPU");
  }

  // Lets the values come to the host, behind what the stream was given before.
  template <class T>
  void read(const device::Memory& memory, std::vector<T>& values) const {
    const device::Device::Current current(device_);
    values.resize(memory.size() / sizeof(T));
    device::check_cuda(device::driver().cuMemcpyDtoHAsync_v2(values.data(), device::pointer(memory.data()),
                                                             memory.size(), stream_.get()),
                       "copy to the host");
  }

  void synchronize() const {
    const device::Device::Current current(device_);  // the other ranks of the process may capture
    device::check_cuda(device::driver().cuStreamSynchronize(stream_.get()), "synchronize");
  }

  engine::Array array(const device::Memory& memory, DType dtype) const {
    const std::uint64_t count = memory.size() / size_of(dtype);
    return {memory.data(), engine::Shape::of({&count, 1}), dtype, device_.ordinal(), handle()};
  }

  std::uintptr_t handle() const { return std::bit_cast<std::uintptr_t>(stream_.get()); }
  device::cuda::Stream stream() const { return stream_.get(); }

 private:
  device::Device& device_;
  device::Stream stream_;
};

inline engine::Call allreduce(const std::string& name, ReduceOp op = ReduceOp::kSum) {
  return {.collective = Collective::kAllreduce, .name = name, .op = op};
}

// Submits as frameworks do that wait later, and waits.
inline void submit_and_wait(Runtime& runtime, const std::shared_ptr<engine::Operation>& operation,
                            const Framework& framework) {
  runtime.submit(operation);
  if (operation->descriptor.captured) {
    CHECK(operation->done());
  } else {
    runtime.wait(*operation, Runtime::kForever, {});
  }
  if (operation->error != nullptr) throw *operation->error;
  carriers::hold_back(*operation, framework.handle());
}

}  // namespace ringcore::testing
