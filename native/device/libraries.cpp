#include "device/libraries.hpp"

#include <memory>
#include <mutex>
#include <utility>

#include "base/error.hpp"
#include "base/library.hpp"

namespace ringcore::device {
namespace {

std::mutex mutex;  // Guards: paths, and the opening of each library.

LibraryPaths& paths() {
  static auto& known = *new LibraryPaths;
  return known;
}

// What became of opening a library.
template <class Table>
struct Opened {
  Table table{};
  std::string path;
  std::string version;
  std::unique_ptr<const Error> problem;

  const Table& get() const {
    if (problem != nullptr) throw *problem;
    return table;
  }

  LibraryStatus status(const char* name) const {
    return {name, path, version, problem == nullptr ? "" : problem->what()};
  }
};

// `prepare(opened, library)` loads the functions.
template <class Table, class Prepare>
const Opened<Table>& open(const char* title, std::vector<std::string> LibraryPaths::* names, Prepare prepare) {
  static const Opened<Table>* once = nullptr;  // never freed: it is used until the process ends
  const std::lock_guard lock(mutex);
  if (once == nullptr) {
    auto opened = std::make_unique<Opened<Table>>();
    try {
      const Library library(title, paths().*names);
      prepare(*opened, library);
      opened->path = library.path();
    } catch (const Error& error) {
      opened->problem = std::make_unique<const Error>(error);
    }
    once = opened.release();
  }
  return *once;
}

std::string dotted(int version, int major_unit, int minor_unit) {
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / minor_unit);
}

void refuse(const std::string& why) { throw Error(ErrorKind::kResource, why); }

const Opened<Driver>& opened_driver() {
  return open<Driver>("CUDA's driver", &LibraryPaths::cuda, [](Opened<Driver>& opened, const Library& library) {
    Driver& table = opened.table;
    each_driver_function(table, [&](const char* name, auto*& function) { library.load(name, function); });
    each_optional_driver_function(table,
                                  [&](const char* name, auto*& function) { library.load_if_there(name, function); });
    if (const cuda::Result result = table.cuInit(0); result != cuda::kSuccess) {
      const char* text = nullptr;
      table.cuGetErrorString(result, &text);
      refuse("CUDA's driver (" + library.path() + ") does not start: " + (text == nullptr ? "" : text) +
             " (CUDA error " + std::to_string(result) + ")");
    }
    int version = 0;
    table.cuDriverGetVersion(&version);
    opened.version = dotted(version, 1000, 10);
  });
}

const Opened<Nccl>& opened_nccl() {
  return open<Nccl>("NCCL", &LibraryPaths::nccl, [](Opened<Nccl>& opened, const Library& library) {
    each_nccl_function(opened.table, [&](const char* name, auto*& function) { library.load(name, function); });
    each_optional_nccl_function(opened.table,
                                [&](const char* name, auto*& function) { library.load_if_there(name, function); });
    int version = 0;
    opened.table.ncclGetVersion(&version);
    opened.version = nccl_version_text(version);
  });
}

const Opened<Nvrtc>& opened_nvrtc() {
  return open<Nvrtc>("NVRTC", &LibraryPaths::nvrtc, [](Opened<Nvrtc>& opened, const Library& library) {
    each_nvrtc_function(opened.table, [&](const char* name, auto*& function) { library.load(name, function); });
    int major = 0;
    int minor = 0;
    opened.table.nvrtcVersion(&major, &minor);
    opened.version = std::to_string(major) + "." + std::to_string(minor);
  });
}

}  // namespace

std::string nccl_version_text(int version) { return dotted(version, 10000, 100) + "." + std::to_string(version % 100); }

void set_library_paths(LibraryPaths known) {
  const std::lock_guard lock(mutex);
  paths() = std::move(known);
}

const Driver& driver() { return opened_driver().get(); }
const Nccl& nccl_api() { return opened_nccl().get(); }
const Nvrtc& nvrtc_api() { return opened_nvrtc().get(); }

std::vector<LibraryStatus> library_status() {
  return {opened_driver().status("CUDA driver"), opened_nccl().status("NCCL"), opened_nvrtc().status("NVRTC")};
}

void check_cuda(cuda::Result result, const char* call) {
  if (result == cuda::kSuccess) return;
  const char* text = nullptr;
  driver().cuGetErrorString(result, &text);
  throw Error(ErrorKind::kResource, std::string(call) + ": " + (text == nullptr ? "failed" : text) + " (CUDA error " +
                                        std::to_string(result) + ")");
}

void check_nvrtc(int result, const char* call) {
  if (result == 0) return;
  throw Error(ErrorKind::kResource, std::string(call) + " failed (NVRTC error " + std::to_string(result) + ")");
}

}  // namespace ringcore::device
