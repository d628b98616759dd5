// NVIDIA's libraries, each opened when it is first needed, once a process.
#pragma once

#include <string>
#include <vector>

#include "device/cuda_driver.hpp"
#include "device/nccl_api.hpp"
#include "device/nvrtc_api.hpp"

namespace ringcore::device {

// Where they may be: paths, or names for the system's search; the first that can be opened is taken. Python looks for
// the copies that frameworks bring along. Without effect on what is open already.
struct LibraryPaths {
  std::vector<std::string> cuda{"libcuda.so.1"};
  std::vector<std::string> nccl{"libnccl.so.2"};
  std::vector<std::string> nvrtc{"libnvrtc.so.13", "libnvrtc.so.12"};
};
void set_library_paths(LibraryPaths paths);

// Throw Error{kResource} with the reason where there is none; the same each time.
const Driver& driver();
const Nccl& nccl_api();
const Nvrtc& nvrtc_api();

// For `doctor`. Opens the libraries.
struct LibraryStatus {
  std::string name;
  std::string path;     // empty: it cannot be used
  std::string version;
  std::string problem;  // why not
};
std::vector<LibraryStatus> library_status();

// As NCCL numbers its versions: 22707 is 2.27.7.
std::string nccl_version_text(int version);

// Throw Error{kResource} that tells which call failed, and why.
void check_cuda(cuda::Result result, const char* call);
void check_nvrtc(int result, const char* call);

}  // namespace ringcore::device
