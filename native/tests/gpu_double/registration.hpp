// Memory that NCCL allocates, and what communicators are told of memory. What NCCL does not forgive ends the process, as
// it would end all use of a GPU: freeing memory that is registered, forgetting what a kernel still uses.
#pragma once

#include <cstddef>
#include <memory>

namespace gpu_double {

enum class Registered : int { kNot, kLocally, kAsWindow };

struct Registration {
  const void* communicator;
  const std::byte* begin;  // as the host sees it
  std::size_t bytes;
  Registered how;
};

// Null when there is no more.
void* allocate_for_nccl(std::size_t bytes);
void free_of_nccl(void* memory);
// Of memory that is about to be freed by CUDA's own functions.
void check_free(const void* memory);

// What stands for it in NCCL's interface; null when the communicator knows such a window already.
void* add_registration(const Registration& registration);
// False: the communicator knows of no such thing.
bool remove_registration(const void* communicator, const void* handle);
// Of a communicator that ends.
void remove_registrations(const void* communicator);

// The registration that the range lies in, or null. Whoever keeps it uses the memory.
std::shared_ptr<const Registration> find_registration(const void* communicator, const std::byte* begin,
                                                      std::size_t bytes);

// Of tests: a collective has used such memory.
void count_use(Registered how);

}  // namespace gpu_double
