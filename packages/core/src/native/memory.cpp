// Segments, and tensors in registered memory.
#include <malloc.h>
#include <unistd.h>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include "base/hash.hpp"
#include "register.hpp"
#include "runtime/host_memory.hpp"

namespace nb = nanobind;

namespace ringcore::python {

namespace {

class RegisteredMemory {
 public:
  RegisteredMemory(std::shared_ptr<HostMemory> memory, std::size_t bytes)
      : memory_(std::move(memory)), data_(memory_->arena.allocate(bytes)), bytes_(bytes) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  // A forked child shares the pages with its parent: only the process that has allocated them may give them back.
  ~RegisteredMemory() {
    if (::getpid() == pid_) memory_->arena.release(data_);
  }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<HostMemory> memory_;
  std::byte* data_;
  std::size_t bytes_;
  pid_t pid_ = ::getpid();
};

}  // namespace

void register_memory(nb::module_& module) {
  nb::class_<HostMemory>(module, "HostMemory", "The memory that this rank shares with the other ranks of its host.")
      .def_static(
          "create",
          [](Rank rank, int size, std::uint64_t arena_bytes, std::size_t fusion_bytes) {
            return std::make_shared<HostMemory>(rank, size, arena_bytes, fusion_bytes);
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("arena_bytes"), nb::arg("fusion_bytes"),
          "`arena_bytes`: 0 for the usual size. `fusion_bytes`: of a buffer that small tensors are packed in, of which "
          "there are several.")
      .def_prop_ro("fd", [](const HostMemory& memory) { return memory.segment.fd(); })
      .def(
          "allocate",
          [](const std::shared_ptr<HostMemory>& memory, std::size_t bytes) {
            return new RegisteredMemory(memory, bytes);
          },
          nb::arg("bytes"), "Registered memory: the other ranks of the host reduce from and into it without a copy.");
  nb::class_<RegisteredMemory>(module, "RegisteredMemory")
      .def_prop_ro("address", [](const RegisteredMemory& m) { return reinterpret_cast<std::uintptr_t>(m.data()); })
      .def_prop_ro("nbytes", &RegisteredMemory::bytes)
      .def(
          "view",
          [](nb::handle_t<RegisteredMemory> self) {
            const auto& memory = nb::cast<const RegisteredMemory&>(self);
            return nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>>(memory.data(), {memory.bytes()}, self);
          },
          "A writable memoryview that keeps the memory alive.");
  module.def(
      "keep_freed_memory",
      []([[maybe_unused]] int largest_block_bytes, [[maybe_unused]] int kept_bytes) {
#ifdef __GLIBC__
        ::mallopt(M_MMAP_THRESHOLD, largest_block_bytes);
        ::mallopt(M_TRIM_THRESHOLD, kept_bytes);
#endif
      },
      nb::arg("largest_block_bytes"), nb::arg("kept_bytes"),
      "glibc: blocks up to this size come from the heap, and so much stays free at its top.");
  module.def(
      "hash_of",
      [](std::uintptr_t address, std::size_t nbytes) {
        return hash_of({reinterpret_cast<const std::byte*>(address), nbytes});
      },
      nb::arg("address"), nb::arg("nbytes"), nb::call_guard<nb::gil_scoped_release>(),
      "Of so many bytes of this process's memory: XXH64.");
}

}  // namespace ringcore::python
