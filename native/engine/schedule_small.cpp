// What ends without a task: what came along with the announcements, and what concerns this rank alone.
#include <cstring>
#include <numeric>
#include <utility>

#include "base/reduce.hpp"
#include "engine/schedule.hpp"

namespace ringcore::engine {

namespace {

// What all members put in has come along with their announcements: see tree_data.hpp.
void finish_summed(const Release& release, int self, int members, Operation& own) {
  const std::vector<std::byte>& sum = *release.sum;
  if (own.descriptor.collective == Collective::kReduce && own.descriptor.root != self) return;
  if (!reduces(own.descriptor.collective)) {
    if (own.descriptor.has_own_result()) own.result_rows.assign(static_cast<std::size_t>(members), release.of(0).rows);
    std::memcpy(own.place_result(sum.size()), sum.data(), sum.size());
    return;
  }
  const std::byte* const sources[] = {sum.data()};
  std::byte* const targets[] = {own.output};
  reduce_many(own.descriptor.dtype, summing(own.descriptor.op), sources, targets, own.count(),
              host_scales(own.descriptor, members).result);
}

}  // namespace

// Without a task: what has no data, what came with the announcements, and what concerns this rank alone. On a server all of
// that is the ranks' own, and over.
bool Schedule::finish_small(const Descriptor& descriptor, std::shared_ptr<Operation>& own, const Release& release) {
  if (self_ >= size()) return descriptor.collective == Collective::kBarrier || release.all_have(kEager) || size() == 1;
  if (own != nullptr && descriptor.collective == Collective::kBarrier) {
    complete_small(std::move(own));
    return true;
  }
  if (own != nullptr && release.sum != nullptr) {
    finish_summed(release, self_, size(), *own);
    complete_small(std::move(own));
    return true;
  }
  if (own != nullptr && release.all_have(kEager)) {
    std::vector<EagerPart> parts;
    for (int m = 0; m < size(); ++m) {
      const Contribution& from = release.of(static_cast<std::size_t>(m));
      const std::byte* const data = m == self_ ? own->input : from.payload.data();
      parts.push_back(eager_part(descriptor, from, size(), data, self_).value());  // its splits were checked
    }
    finish_eager(parts, *own);
    complete_small(std::move(own));
    return true;
  }
  if (size() != 1) return false;
  finish_alone(*own);
  complete_small(std::move(own));
  return true;
}

// The only member: the result is the (scaled) input.
void Schedule::finish_alone(Operation& own) const {
  const Descriptor& descriptor = own.descriptor;
  if (descriptor.has_own_result()) own.result_rows = {descriptor.shape.rows()};
  std::byte* const to = own.place_result(own.bytes());
  if (to != own.input && own.count() > 0) std::memcpy(to, own.input, own.bytes());
  const Scales scales = host_scales(descriptor, 1);
  if (scales.input != 1.0) scale_in_place(descriptor.dtype, to, own.count(), scales.input);
  if (scales.result != 1.0) scale_in_place(descriptor.dtype, to, own.count(), scales.result);
}

void Schedule::finish_eager(std::span<const EagerPart> parts, Operation& own) {
  switch (own.descriptor.collective) {
    case Collective::kBarrier: return;
    case Collective::kAllreduce:
    case Collective::kReduceScatter: return reduce_eager(parts, own);
    case Collective::kReduce:
      if (own.descriptor.root == self_) reduce_eager(parts, own);
      return;
    case Collective::kAllgather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAlltoall: return gather_eager(parts, own);
    case Collective::kBroadcast: {
      const std::byte* const from = parts[own.descriptor.root].data;
      if (own.output != from && own.bytes() > 0) std::memcpy(own.output, from, own.bytes());
      return;
    }
  }
  __builtin_unreachable();
}

// One behind the other, in the order of the members.
void Schedule::gather_eager(std::span<const EagerPart> parts, Operation& own) const {
  const std::size_t row_bytes = own.descriptor.shape.row_elements() * size_of(own.descriptor.dtype);
  std::uint64_t rows = 0;
  own.result_rows.clear();
  for (const EagerPart& part : parts) {
    own.result_rows.push_back(part.rows);
    rows += part.rows;
  }
  std::byte* const result = own.place_result(rows * row_bytes);
  const auto move = [&](int member) {
    const EagerPart& part = parts[member];
    const std::uint64_t before =
        std::accumulate(own.result_rows.begin(), own.result_rows.begin() + member, std::uint64_t{0});
    if (part.rows * row_bytes > 0) std::memmove(result + before * row_bytes, part.data, part.rows * row_bytes);
  };
  move(self_);  // what this rank has may lie anywhere in the result: it moves first
  for (int m = 0; m < size(); ++m) {
    if (m != self_) move(m);
  }
}

// All elements, or those of this member's rows.
void Schedule::reduce_eager(std::span<const EagerPart> parts, Operation& own) {
  const Descriptor& descriptor = own.descriptor;
  std::uint64_t begin = 0;
  std::uint64_t count = own.count();
  std::byte* target = own.output;
  if (descriptor.collective == Collective::kReduceScatter) {
    const auto blocks = dealt_blocks(descriptor.shape.rows(), descriptor.shape.row_elements(), size());
    begin = std::accumulate(blocks.begin(), blocks.begin() + self_, std::uint64_t{0});
    count = blocks[self_];
    target = own.place_result(count * size_of(descriptor.dtype));
  }
  if (count == 0) return;
  eager_sources_.clear();
  for (const EagerPart& part : parts) eager_sources_.push_back(part.data + begin * size_of(descriptor.dtype));
  std::byte* const targets[] = {target};
  reduce_many(descriptor.dtype, summing(descriptor.op), eager_sources_, targets, count,
              host_scales(descriptor, size()).result);
}

void Schedule::complete_small(std::shared_ptr<Operation> operation) {
  if (timeline_.enabled()) record_small(*operation);
  complete(std::move(operation));
}

void Schedule::record_small(const Operation& operation) const {
  // The short cut asks for no clock unless a timeline is recorded, which may have begun since.
  const Nanoseconds now = clock_.now();
  const Nanoseconds begin = operation.submitted_at == 0 ? now : operation.submitted_at;
  const Nanoseconds released = operation.released_at == 0 ? begin : operation.released_at;
  const auto span = [&](const std::string& activity, Nanoseconds from, Nanoseconds to) {
    timeline_.record({operation.descriptor.name, activity, transport::kControlLane, -1, from, to, operation.bytes(),
                      operation.submitted_at, operation.blocks_program()});
  };
  if (released > begin) span("negotiate", begin, released);
  span("short cut", released, now);
  timeline_.flush();
}

}  // namespace ringcore::engine
