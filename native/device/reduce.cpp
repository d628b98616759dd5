#include "device/reduce.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/kernels.hpp"
#include "device/libraries.hpp"
#include "kernels_source.hpp"

namespace ringcore::device {
namespace {

constexpr unsigned kThreads = 256;
// So many blocks fill a multiprocessor's threads.
constexpr std::size_t kBlocksPerMultiprocessor = 8;

// bool is reduced as uint8: its sum and maximum are OR, the others AND.
ReduceOp op_of(DType dtype, ReduceOp op) {
  if (dtype != DType::kBool) return op;
  return op == ReduceOp::kSum || op == ReduceOp::kMax ? ReduceOp::kMax : ReduceOp::kMin;
}

}  // namespace

const ReduceKernels& ReduceKernels::of(Device& device) {
  static std::mutex mutex;
  static auto& compiled = *new std::map<int, std::unique_ptr<const ReduceKernels>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const ReduceKernels>& kernels = compiled[device.ordinal()];
  if (kernels == nullptr) kernels.reset(new ReduceKernels(device));
  return *kernels;
}

ReduceKernels::ReduceKernels(Device& device) : device_(device) {
  cuda::Module module = compile_module(device, "ringcore_reduce.cu", kReduceSource);
  const Device::Current current(device);
  for (int code = 0; code < kDTypeCount; ++code) {
    const auto dtype = static_cast<DType>(code);
    const DType computed = dtype == DType::kBool ? DType::kUInt8 : dtype;
    functions_[code] = function_of(module, "ringcore_reduce_" + std::string(name_of(computed)));
  }
}

void ReduceKernels::reduce(cuda::Stream stream, DType dtype, ReduceOp op, std::span<const cuda::Pointer> from,
                           cuda::Pointer to, std::size_t bytes, double factor) const {
  const std::size_t vectors = bytes / kVectorBytes;
  if (vectors == 0) return;
  Sources parameter{.from = {},
                    .to = to,
                    .vectors = vectors,
                    .factor = factor,
                    .count = static_cast<std::int32_t>(from.size()),
                    .op = static_cast<std::int32_t>(op_of(dtype, op))};
  std::copy(from.begin(), from.end(), parameter.from.begin());
  const std::size_t most = static_cast<std::size_t>(device_.multiprocessors()) * kBlocksPerMultiprocessor;
  const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>(vectors / kThreads, 1, most));
  void* parameters[] = {&parameter};
  check_cuda(driver().cuLaunchKernel(functions_[static_cast<std::size_t>(dtype)], blocks, 1, 1, kThreads, 1, 1, 0,
                                     stream, parameters, nullptr),
             "cuLaunchKernel");
}

}  // namespace ringcore::device
