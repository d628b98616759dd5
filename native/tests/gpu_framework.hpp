// What tests of GPUs need besides the engine: the test double, and what a framework has there.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "device/libraries.hpp"
#include "engine/request.hpp"

namespace ringcore::testing {

inline void use_double() {
  const std::string path = RINGCORE_GPU_DOUBLE;
  device::set_library_paths({{path}, {path}, {path}});
}

// One that no library of NVIDIA has.
template <class Argument>
void tell_double(const char* function, Argument argument) {
  void* library = ::dlopen(RINGCORE_GPU_DOUBLE, RTLD_NOW);
  reinterpret_cast<void (*)(Argument)>(::dlsym(library, function))(argument);
}

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

}  // namespace ringcore::testing
