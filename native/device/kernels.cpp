#include "device/kernels.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/reduce.hpp"
#include "device/libraries.hpp"
#include "kernels_source.hpp"

namespace ringcore::device {
namespace {

constexpr unsigned kThreads = 256;
// What a thread moves in one turn of the loop: four vectors of 16 bytes.
constexpr std::size_t kBytesPerThread = 64;
// So many blocks fill a multiprocessor's threads.
constexpr unsigned kBlocksPerMultiprocessor = 8;

// Of the architectures that NVRTC compiles for, the newest that a GPU of this capability understands.
int newest_up_to(int capability) {
  int count = 0;
  check_nvrtc(nvrtc_api().nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(count);
  check_nvrtc(nvrtc_api().nvrtcGetSupportedArchs(known.data()), "nvrtcGetSupportedArchs");
  int newest = 0;
  for (const int each : known) newest = each <= capability ? std::max(newest, each) : newest;
  if (newest != 0) return newest;
  throw Error(ErrorKind::kResource, "this NVRTC compiles for no GPU as old as one of sm_" + std::to_string(capability));
}

// A cubin, or PTX.
std::vector<char> compile(int capability, const char* name, const char* source) {
  const Nvrtc& compiler = nvrtc_api();
  struct Program {
    nvrtc::Program handle = nullptr;
    ~Program() { nvrtc_api().nvrtcDestroyProgram(&handle); }
  } program;
  const char* const headers[] = {kKernelsSource};
  const char* const header_names[] = {"kernels.cu"};
  check_nvrtc(compiler.nvrtcCreateProgram(&program.handle, source, name, 1, headers, header_names),
              "nvrtcCreateProgram");
  // What is younger than the compiler gets PTX of the last architecture before it, which the driver translates.
  const int known = newest_up_to(capability);
  const bool exact = known == capability;
  const std::string architecture =
      std::string("--gpu-architecture=") + (exact ? "sm_" : "compute_") + std::to_string(known);
  const char* const options[] = {architecture.c_str(), "--std=c++17"};
  if (const int result = compiler.nvrtcCompileProgram(program.handle, 2, options); result != 0) {
    std::size_t bytes = 0;
    compiler.nvrtcGetProgramLogSize(program.handle, &bytes);
    std::string log(bytes, '\0');
    compiler.nvrtcGetProgramLog(program.handle, log.data());
    throw Error(ErrorKind::kResource,
                std::string("NVRTC refuses ") + name + " for sm_" + std::to_string(capability) + ": " + log);
  }
  std::size_t bytes = 0;
  if (!exact) {
    check_nvrtc(compiler.nvrtcGetPTXSize(program.handle, &bytes), "nvrtcGetPTXSize");
    std::vector<char> ptx(bytes);
    check_nvrtc(compiler.nvrtcGetPTX(program.handle, ptx.data()), "nvrtcGetPTX");
    return ptx;
  }
  check_nvrtc(compiler.nvrtcGetCUBINSize(program.handle, &bytes), "nvrtcGetCUBINSize");
  std::vector<char> cubin(bytes);
  check_nvrtc(compiler.nvrtcGetCUBIN(program.handle, cubin.data()), "nvrtcGetCUBIN");
  return cubin;
}

}  // namespace

cuda::Module compile_module(const Device& device, const char* name, const char* source) {
  const std::vector<char> cubin = compile(device.capability(), name, source);
  const Device::Current current(device);
  cuda::Module module = nullptr;
  check_cuda(driver().cuModuleLoadData(&module, cubin.data()), "cuModuleLoadData");
  return module;
}

cuda::Function function_of(cuda::Module module, const std::string& name) {
  cuda::Function found = nullptr;
  check_cuda(driver().cuModuleGetFunction(&found, module, name.c_str()), "cuModuleGetFunction");
  return found;
}

Kernels::Kernels(Device& device) : device_(device) {
  cuda::Module module = compile_module(device, "ringcore_kernels.cu", kKernelsSource);
  const Device::Current current(device);
  copy_ = function_of(module, "ringcore_copy");
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    scale_[static_cast<std::size_t>(dtype)] = function_of(module, "ringcore_scale_" + std::string(name_of(dtype)));
  }
}

void Kernels::copy(cuda::Stream stream, DType dtype, std::span<const Segment> segments, double factor) const {
  if (factor != 1.0) return launch(stream, scale_[static_cast<std::size_t>(dtype)], segments, factor, size_of(dtype));
  std::vector<Segment> bytes(segments.begin(), segments.end());
  for (Segment& segment : bytes) segment.elements *= size_of(dtype);
  launch(stream, copy_, bytes, 1.0, 1);
}

void Kernels::launch(cuda::Stream stream, cuda::Function function, std::span<const Segment> segments, double factor,
                     std::size_t element_bytes) const {
  while (!segments.empty()) {
    const std::span<const Segment> now = segments.first(std::min(segments.size(), kMaxSegments));
    segments = segments.subspan(now.size());
    Segments parameter{.at = {}, .factor = factor};
    std::size_t largest = 0;
    for (std::size_t i = 0; i < now.size(); ++i) {
      parameter.at[i] = now[i];
      largest = std::max(largest, now[i].elements * element_bytes);
    }
    constexpr std::size_t kBytesPerBlock = kThreads * kBytesPerThread;
    const auto most = static_cast<std::size_t>(device_.multiprocessors()) * kBlocksPerMultiprocessor;
    const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>(largest / kBytesPerBlock, 1, most));
    void* parameters[] = {&parameter};
    check_cuda(driver().cuLaunchKernel(function, blocks, static_cast<unsigned>(now.size()), 1, kThreads, 1, 1, 0,
                                       stream, parameters, nullptr),
               "cuLaunchKernel");
  }
}

void copy_segments(Device& device, cuda::Stream stream, DType dtype, std::span<const Segment> segments, double factor) {
  if (const Kernels* kernels = device.kernels()) return kernels->copy(stream, dtype, segments, factor);
  for (const Segment& segment : segments) {
    if (segment.elements == 0 || segment.from == segment.to) continue;
    check_cuda(driver().cuMemcpyDtoDAsync_v2(segment.to, segment.from, segment.elements * size_of(dtype), stream),
               "cuMemcpyDtoDAsync");
  }
}

// The largest element, or several of a smaller one, as two words that the GPU writes again and again.
void fill_identity(cuda::Stream stream, DType dtype, ReduceOp op, cuda::Pointer to, std::size_t bytes) {
  std::array<std::uint32_t, 2> words{};
  ringcore::fill_identity(dtype, op, reinterpret_cast<std::byte*>(words.data()), sizeof(words) / size_of(dtype));
  const std::size_t rows = bytes / sizeof(words);
  for (std::size_t i = 0; i < words.size() && rows > 0; ++i) {
    check_cuda(driver().cuMemsetD2D32Async(to + i * sizeof(words[i]), sizeof(words), words[i], 1, rows, stream),
               "cuMemsetD2D32Async");
  }
}

}  // namespace ringcore::device
