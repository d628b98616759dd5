// One execution of one plan, as the files of Execution share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/reduce.hpp"
#include "engine/execution.hpp"

namespace ringcore::engine {

// For one operation, or for the allreduces of a bucket.
struct Execution::Task {
  std::vector<std::shared_ptr<const Descriptor>> descriptors;  // one, or those of the bucket; also when joined
  std::vector<std::shared_ptr<Operation>> operations;          // the same order; empty when this rank has joined
  std::vector<Contribution> contributions;                     // of a task that is no bucket
  std::vector<int> absent;  // members that had joined: the same for all tensors of a bucket
  bool bucket = false;
  bool registered = false;  // every rank's data lies ready in its arena
  std::int32_t priority = 0;
  int lane = 0;
  std::uint32_t id = 0;
  std::size_t bytes = 0;
  std::size_t run_bytes = 0;  // of what the run is about, all ranks' parts together
  Memory work;  // for data that cannot lie in an operation's own memory
  Memory scratch;
  std::byte* packed = nullptr;  // where the tensors were packed
  bool sliced = false;          // the tensor goes through there slice by slice
  std::size_t slice_begin = 0;  // bytes
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
    double scale;
  };
  std::optional<Copy> copy;  // still to be made before the run
  plan::Chooser::Choice choice;
  bool agreeing = false;  // the operation has ended, `run` is about what its trial has measured
  std::unique_ptr<plan::Run> run;
  Nanoseconds started_at = 0;
  Nanoseconds ready_at = 0;
  bool moved = false;         // since it was last looked after
  Nanoseconds still_for = 0;  // it has not moved for so long

  const Descriptor& descriptor() const { return *descriptors.front(); }
  Operation& operation() const { return *operations.front(); }

  std::string title() const {
    const std::size_t others = descriptors.size() - 1;
    return std::string(name_of(descriptor().collective)) + " '" + descriptor().name + "'" +
           (others > 0 ? " and " + std::to_string(others) + " more" : "");
  }

  void add(std::shared_ptr<const Descriptor> described, std::shared_ptr<Operation> own, std::size_t size) {
    descriptors.push_back(std::move(described));
    if (own != nullptr) operations.push_back(std::move(own));
    bytes += size;
  }
};

inline void copy_scaled(const Descriptor& descriptor, std::byte* to, const std::byte* from, std::size_t count) {
  if (to != from && count > 0) std::memcpy(to, from, count * size_of(descriptor.dtype));
  const double scale = host_scales(descriptor, 1).input;
  if (scale != 1.0) scale_in_place(descriptor.dtype, to, count, scale);
}

}  // namespace ringcore::engine
