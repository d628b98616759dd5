#include "registration.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <vector>

#include "double.hpp"
#include "memory.hpp"

namespace gpu_double {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

std::mutex mutex;  // Guards: registrations(), allocations().

std::vector<std::shared_ptr<const Registration>>& registrations() {
  static auto& all = *new std::vector<std::shared_ptr<const Registration>>;
  return all;
}

std::set<const void*>& allocations() {
  static auto& all = *new std::set<const void*>;
  return all;
}

std::array<std::atomic<int>, 3> uses;

[[noreturn]] void punish(const char* mistake) {
  std::fprintf(stderr, "the double of NCCL: %s\n", mistake);
  std::abort();
}

bool overlap(const Registration& one, const std::byte* begin, std::size_t bytes) {
  return one.begin < begin + bytes && begin < one.begin + one.bytes;
}

void check_unregistered(const void* memory) {
  const std::byte* begin = visible(memory);
  const std::size_t bytes = allocated_bytes(reinterpret_cast<std::uint64_t>(memory));
  for (const auto& one : registrations()) {
    if (overlap(*one, begin, bytes)) punish("memory is freed that a communicator still knows");
  }
}

void check_unused(const std::shared_ptr<const Registration>& registration) {
  if (registration.use_count() > 1) punish("memory is deregistered that a collective still uses");
}

}  // namespace

void* allocate_for_nccl(std::size_t bytes) {
  const std::uint64_t address = allocate((bytes + kGranularity - 1) / kGranularity * kGranularity);
  if (address == 0) return nullptr;
  const std::lock_guard lock(mutex);
  void* memory = reinterpret_cast<void*>(address);
  allocations().insert(memory);
  return memory;
}

void free_of_nccl(void* memory) {
  {
    const std::lock_guard lock(mutex);
    if (allocations().erase(memory) == 0) punish("ncclMemFree of what ncclMemAlloc has not given");
    check_unregistered(memory);
  }
  release(reinterpret_cast<std::uint64_t>(memory));
}

void check_free(const void* memory) {
  const std::lock_guard lock(mutex);
  if (allocations().count(memory) > 0) punish("memory of ncclMemAlloc is freed by CUDA's function");
  check_unregistered(memory);
}

void* add_registration(const Registration& registration) {
  const std::lock_guard lock(mutex);
  const bool known = std::any_of(registrations().begin(), registrations().end(), [&](const auto& one) {
    return one->communicator == registration.communicator && one->how == Registered::kAsWindow &&
           overlap(*one, registration.begin, registration.bytes);
  });
  if (known) return nullptr;
  registrations().push_back(std::make_shared<const Registration>(registration));
  return const_cast<Registration*>(registrations().back().get());
}

bool remove_registration(const void* communicator, const void* handle) {
  const std::lock_guard lock(mutex);
  const auto found = std::find_if(registrations().begin(), registrations().end(), [&](const auto& one) {
    return one.get() == handle && one->communicator == communicator;
  });
  if (found == registrations().end()) return false;
  check_unused(*found);
  registrations().erase(found);
  return true;
}

void remove_registrations(const void* communicator) {
  const std::lock_guard lock(mutex);
  std::erase_if(registrations(), [&](const auto& one) { return one->communicator == communicator; });
}

std::shared_ptr<const Registration> find_registration(const void* communicator, const std::byte* begin,
                                                      std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto found = std::find_if(registrations().begin(), registrations().end(), [&](const auto& one) {
    return one->communicator == communicator && one->begin <= begin && begin + bytes <= one->begin + one->bytes;
  });
  return found == registrations().end() ? nullptr : *found;
}

void count_use(Registered how) { ++uses.at(static_cast<std::size_t>(how)); }

}  // namespace gpu_double

using namespace gpu_double;  // NOLINT

#define EXPORT extern "C" __attribute__((visibility("default")))

// Of tests: how many collectives have run on memory that was registered so.
EXPORT int gpu_double_uses(int how) { return uses.at(static_cast<std::size_t>(how)); }

// And how much memory of ncclMemAlloc has not been freed.
EXPORT int gpu_double_allocations() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(allocations().size());
}
