// What a task of one tensor runs on, by its collective.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "base/reduce.hpp"
#include "carriers/plans/host_run.hpp"

namespace ringcore::carriers {
namespace {

using engine::dealt_blocks;
using engine::Descriptor;
using engine::Operation;
using engine::summing;

std::uint64_t sum_before(const std::vector<std::uint64_t>& sizes, int member) {
  return std::accumulate(sizes.begin(), sizes.begin() + member, std::uint64_t{0});
}

}  // namespace

void HostRun::start_allreduce() {
  if (carrier_.slices(task_)) {
    sliced_ = true;
    return start_slice();
  }
  plan::Operands operands;
  plan::Query query{.collective = Collective::kAllreduce, .bytes = task_.bytes};
  if (task_.descriptors.size() == 1) {
    place_alone(query, operands);
  } else {
    place_in_fusion_buffer(task_.bytes, operands);
    pack(packed_);
    query.registered = !operands.peer_data.empty();
  }
  run(query, std::move(operands));
}

// Works on the operation's own memory.
void HostRun::place_alone(plan::Query& query, plan::Operands& operands) {
  const Descriptor& descriptor = task_.descriptor();
  const std::size_t count = descriptor.shape.elements();
  if (task_.operations.empty()) {
    work_ = Memory(task_.bytes);
    fill_identity(descriptor.dtype, summing(descriptor.op), work_.data(), count);
    operands.data = work_.data();
    return;
  }
  operands.data = task_.operation().output;
  query.registered = task_.registered && !task_.bucket;
  if (query.registered) operands.peer_data = find_peers(task_.bytes);
  operands.input = task_.operation().input;
  if (query.registered && sums_from_inputs(query)) {
    query.inputs_ready = true;
    operands.peer_inputs = find_inputs(task_.bytes);
    return;
  }
  // Others find it in place only when it has been copied there.
  query.inputs_ready = query.registered && std::all_of(task_.contributions.begin(), task_.contributions.end(),
                                                       [](const auto& c) { return c.location == c.input_location(); });
}

// What this rank gives to an allreduce stays where it is until something is added to it; but not where a library wants it in
// place, or others look for it there.
void HostRun::place_input(const plan::Plan* plan, plan::Operands& operands) {
  const bool known = plan != nullptr && (!plan->one_sided || !operands.peer_inputs.empty());
  if (known && host_scales(task_.descriptor(), size()).input == 1.0) return;
  copy_first(operands.data, std::exchange(operands.input, nullptr), task_.bytes);
}

// Whether what the members give to an allreduce stays as it is, and lies in registered memory, all of it.
bool HostRun::sums_from_inputs(plan::Query query) {
  if (!reads_registered() || config().topology.serving > 0) return false;
  query.inputs_ready = true;
  carrier_.describe(query, descriptor());
  return std::any_of(task_.contributions.begin(), task_.contributions.end(),
                     [](const auto& c) { return c.location != c.input_location(); }) &&
         carrier_.chooser_.choose_plan(query).sums_at_once();
}

// Whether a plan is sure to be the planner's own, and the members to see each other's memory.
bool HostRun::reads_registered() const {
  return task_.registered && config().topology.single_host() && !carrier_.chooser_.has_others();
}

bool HostRun::all_lie_registered() const {
  return std::all_of(task_.contributions.begin(), task_.contributions.end(),
                     [](const auto& c) { return c.location != 0; });
}

// Where the members' registered data lies, as seen from here; null where it is not seen.
std::vector<std::byte*> HostRun::find_peers(std::size_t bytes) const {
  return find(bytes, [](const engine::Contribution& from) { return from.location; });
}

// And what they give to an allreduce, where its sum does not go there.
std::vector<std::byte*> HostRun::find_inputs(std::size_t bytes) const {
  return find(bytes, &engine::Contribution::input_location);
}

template <typename LocationOf>
std::vector<std::byte*> HostRun::find(std::size_t bytes, LocationOf location_of) const {
  std::vector<std::byte*> found(static_cast<std::size_t>(size()), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self() || !config().links[m]->sees_memory()) continue;
    found[m] = config().links[m]->peer_memory(std::invoke(location_of, task_.contributions[m]) - 1, bytes);
  }
  return found;
}

void HostRun::start_allgather() {
  const Descriptor& descriptor = task_.descriptor();
  Operation& operation = task_.operation();
  std::vector<std::uint64_t> blocks(size());
  std::uint64_t before = 0;
  std::uint64_t total = 0;
  operation.result_rows.resize(size());
  for (int m = 0; m < size(); ++m) {
    operation.result_rows[m] = task_.contributions[m].rows;
    blocks[m] = task_.contributions[m].rows * descriptor.shape.row_elements();
    if (m < self()) before += blocks[m];
    total += blocks[m];
  }
  const std::size_t element = size_of(descriptor.dtype);
  plan::Operands operands;
  operands.data = operation.place_result(total * element);
  std::byte* const own = operands.data + before * element;
  const bool lies_inside = operation.input >= operands.data && operation.input < operands.data + total * element;
  // In pieces it would overwrite what is still to be copied.
  if (lies_inside && operation.bytes() > 0) std::memmove(own, operation.input, operation.bytes());
  // Everybody fetches the others' rows from where they have them: at their places in the results.
  const bool registered = all_lie_registered();
  if (registered) operands.peer_data = find_peers(total * element);
  const std::byte* const from = lies_inside ? own : operation.input;
  const bool departs = departs_from_input(registered);
  if (departs) operands.own_block = from;
  run({.collective = Collective::kAllgather, .bytes = total * element, .registered = registered}, std::move(operands),
      blocks);
  // A library wants them in place, too.
  if (departs && choice_.backend == nullptr) {
    copy_meanwhile(own, from, operation.bytes());
  } else {
    copy_first(own, from, operation.bytes());
  }
}

void HostRun::start_broadcast() {
  Operation& operation = task_.operation();
  plan::Operands operands;
  operands.data = operation.output;
  if (task_.registered) operands.peer_data = find_peers(task_.bytes);
  if (self() == task_.descriptor().root && departs_from_input(task_.registered)) {
    operands.data = const_cast<std::byte*>(operation.input);
    copy_meanwhile(operation.output, operation.input, operation.bytes());
  } else if (self() == task_.descriptor().root) {
    copy_first(operation.output, operation.input, operation.bytes());
  }
  run({.collective = Collective::kBroadcast,
       .bytes = task_.bytes,
       .root = task_.descriptor().root,
       .registered = task_.registered,
       .inputs_ready = task_.registered},
      std::move(operands));
}

// On the way to the root sums grow in memory that is not the caller's, but for the root's result.
void HostRun::start_reduce() {
  Operation& operation = task_.operation();
  plan::Operands operands;
  if (self() == task_.descriptor().root) {
    operands.data = operation.output;
  } else {
    work_ = Memory(task_.bytes);
    operands.data = work_.data();
  }
  copy_first(operands.data, operation.input, task_.bytes);
  run({.collective = Collective::kReduce, .bytes = task_.bytes, .root = task_.descriptor().root}, std::move(operands));
}

// The root has all rows at their places in the result. The others' lie where they give them; what a rank passes on has
// memory of the run's own.
void HostRun::start_gather() {
  const Descriptor& descriptor = task_.descriptor();
  Operation& operation = task_.operation();
  const std::size_t element = size_of(descriptor.dtype);
  const bool is_root = self() == descriptor.root;
  std::vector<std::uint64_t> blocks(size());
  operation.result_rows.assign(size(), 0);
  for (int m = 0; m < size(); ++m) {
    blocks[m] = task_.contributions[m].rows * descriptor.shape.row_elements();
    if (is_root) operation.result_rows[m] = task_.contributions[m].rows;
  }
  const std::size_t total = sum_before(blocks, size()) * element;
  std::byte* const result = operation.place_result(is_root ? total : 0);
  plan::Operands operands{.own_block = operation.input};
  const std::byte* from = operation.input;
  if (is_root) {
    operands.data = result;
    std::byte* const own = result + sum_before(blocks, self()) * element;
    // In pieces it would overwrite what is still to be copied.
    const bool lies_inside = from >= result && from < result + total;
    if (lies_inside && operation.bytes() > 0) std::memmove(own, from, operation.bytes());
    if (lies_inside) operands.own_block = from = own;
    copy_meanwhile(own, from, operation.bytes());
  }
  run({.collective = Collective::kGather, .bytes = total, .root = descriptor.root}, std::move(operands), blocks);
}

void HostRun::start_scatter() {
  const Descriptor& descriptor = task_.descriptor();
  Operation& operation = task_.operation();
  const std::size_t element = size_of(descriptor.dtype);
  const engine::Contribution& from = task_.contributions[descriptor.root];
  std::vector<std::uint64_t> blocks(size());
  for (int m = 0; m < size(); ++m) blocks[m] = from.splits[m] * descriptor.shape.row_elements();
  operation.result_rows.assign(size(), 0);
  operation.result_rows[descriptor.root] = from.splits[self()];
  const std::size_t share = blocks[self()] * element;
  std::byte* const result = operation.place_result(share);
  plan::Operands operands;
  if (self() == descriptor.root) {
    operands.data = const_cast<std::byte*>(operation.input);
    copy_meanwhile(result, operation.input + sum_before(blocks, self()) * element, share);
  } else {
    operands.own_block = result;
  }
  run({.collective = Collective::kScatter, .bytes = sum_before(blocks, size()) * element, .root = descriptor.root},
      std::move(operands), blocks);
}

void HostRun::start_reducescatter() {
  const Descriptor& descriptor = task_.descriptor();
  Operation& operation = task_.operation();
  plan::Query query{.collective = Collective::kReduceScatter, .bytes = task_.bytes};
  plan::Operands operands;
  if (reduces_in_place(query)) {
    operands.data = const_cast<std::byte*>(operation.input);
    operands.peer_data = find_peers(task_.bytes);
    query.registered = query.inputs_ready = true;
  } else {
    work_ = Memory(task_.bytes);
    copy_first(work_.data(), operation.input, operation.bytes());
    operands.data = work_.data();
  }
  run(query, std::move(operands), dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size()));
}

// Whether a reducescatter into a part of the tensor runs where that lies. Only a plan that reads the others' rows where
// they are leaves the rest of the tensor as it is.
bool HostRun::reduces_in_place(plan::Query query) {
  if (!reads_registered()) return false;
  query.registered = query.inputs_ready = true;
  carrier_.describe(query, descriptor());
  return carrier_.chooser_.choose_plan(query).one_sided;
}

// Of a reducescatter that ran elsewhere than in the tensor.
void HostRun::take_own_block() {
  const Descriptor& descriptor = task_.descriptor();
  const std::vector<std::uint64_t> blocks =
      dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size());
  const std::size_t element = size_of(descriptor.dtype);
  const std::uint64_t before = sum_before(blocks, self());
  const std::size_t share = blocks[self()] * element;
  std::byte* const result = task_.operation().place_result(share);
  if (share > 0) std::memcpy(result, work_.data() + before * element, share);
}

void HostRun::start_alltoall() {
  const Descriptor& descriptor = task_.descriptor();
  Operation& operation = task_.operation();
  const std::uint64_t row = descriptor.shape.row_elements();
  const std::size_t element = size_of(descriptor.dtype);
  std::vector<std::uint64_t> outgoing(size());
  std::vector<std::uint64_t> incoming(size());
  std::uint64_t all_rows = 0;
  operation.result_rows.resize(size());
  for (int m = 0; m < size(); ++m) {
    outgoing[m] = operation.splits[m] * row;
    operation.result_rows[m] = task_.contributions[m].splits[self()];
    incoming[m] = operation.result_rows[m] * row;
    all_rows += task_.contributions[m].rows;
  }
  const std::uint64_t total = std::accumulate(incoming.begin(), incoming.end(), std::uint64_t{0});
  plan::Operands operands;
  operands.data = operation.place_result(total * element);
  operands.input = operation.input;
  const bool registered = all_lie_registered();
  if (registered) operands.peer_blocks = find_blocks(row * element);
  std::byte* const own = operands.data + sum_before(incoming, self()) * element;
  // The choice of the plan depends on what all ranks know alike.
  const std::size_t bytes = all_rows * row / static_cast<std::uint64_t>(size()) * element;
  run({.collective = Collective::kAlltoall,
       .bytes = bytes,
       .registered = registered,
       .inputs_ready = registered,
       .even_blocks = gives_evenly()},
      std::move(operands), incoming, outgoing);
  copy_meanwhile(own, operation.input + sum_before(outgoing, self()) * element, incoming[self()] * element);
}

// Whether every member gives every member as much.
bool HostRun::gives_evenly() const {
  const std::uint64_t each = task_.contributions[0].splits[0];
  return std::all_of(task_.contributions.begin(), task_.contributions.end(), [&](const auto& from) {
    return std::all_of(from.splits.begin(), from.splits.begin() + size(), [&](std::uint64_t to) { return to == each; });
  });
}

// Where the rows lie that the members give to this rank, as seen from here.
std::vector<std::byte*> HostRun::find_blocks(std::size_t row_bytes) const {
  std::vector<std::byte*> found(static_cast<std::size_t>(size()), nullptr);
  for (int m = 0; m < size(); ++m) {
    if (m == self() || !config().links[m]->sees_memory()) continue;
    const engine::Contribution& from = task_.contributions[m];
    found[m] = config().links[m]->peer_memory(from.location - 1 + sum_before(from.splits, self()) * row_bytes,
                                              from.splits[self()] * row_bytes);
  }
  return found;
}

}  // namespace ringcore::carriers
