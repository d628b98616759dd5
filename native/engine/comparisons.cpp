// What ranks announced for one operation, side by side: whether it is the same, and what is said to them where it is not.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/rank_list.hpp"
#include "engine/negotiation.hpp"

namespace ringcore::engine {
namespace {

std::shared_ptr<const Error> mismatch(const std::string& message) {
  return std::make_shared<const Error>(ErrorKind::kMismatch, message);
}

// Adds the rows of one more member to `sum`. False when their bytes can lie in no memory: what a peer says is not believed.
bool fits_memory(std::uint64_t rows, const Descriptor& descriptor, std::uint64_t& sum) {
  std::uint64_t bytes = 0;
  return !__builtin_add_overflow(sum, rows, &sum) &&
         !__builtin_mul_overflow(sum, descriptor.shape.row_elements() * size_of(descriptor.dtype), &bytes) &&
         bytes <= static_cast<std::uint64_t>(PTRDIFF_MAX);
}

// The same for all parts of a group.
bool fits_memory(const Contribution& contribution, const Descriptor& descriptor, std::vector<std::uint64_t>& sums) {
  if (!descriptor.is_group()) return fits_memory(contribution.rows, descriptor, sums[0]);
  for (std::size_t i = 0; i < descriptor.parts.size(); ++i) {
    const Descriptor& part = *descriptor.parts[i];
    const std::uint64_t rows = part.has_free_rows() ? contribution.splits[i] : part.shape.rows();
    if (!fits_memory(rows, part, sums[i])) return false;
  }
  return true;
}

// But for the first dimension where that may differ.
bool same_shape(const Descriptor& a, const Descriptor& b) {
  const int first = a.has_free_rows() ? 1 : 0;
  return a.shape.dims == b.shape.dims &&
         std::equal(a.shape.extent.begin() + first, a.shape.extent.begin() + std::max<int>(first, a.shape.dims),
                    b.shape.extent.begin() + first);
}

bool same_part(const Descriptor& a, const Descriptor& b) {
  return a.dtype == b.dtype && a.device_index == b.device_index && same_shape(a, b);
}

// Where two groups of the same number of tensors differ; nullopt when it is not one of their tensors.
std::optional<std::size_t> differing_part(const Descriptor& a, const Descriptor& b) {
  if (a.parts.size() != b.parts.size() || a.collective != b.collective) return std::nullopt;
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    if (!same_part(*a.parts[i], *b.parts[i])) return i;
  }
  return std::nullopt;
}

// What two descriptors of one name differ in, and what to do about it.
std::string difference(const Descriptor& a, const Descriptor& b) {
  if (a.collective != b.collective) {
    return "the kind of collective differs; give different operations different names, and call them in the same order";
  }
  if (a.parts.size() != b.parts.size()) {
    return "the number of tensors in the group differs; submit the same tensors together on all ranks";
  }
  if (a.dtype != b.dtype) return "the dtype differs; convert the tensor to one dtype on all ranks";
  if (a.op != b.op) return "the reduce operation differs; pass the same op on all ranks";
  if (a.root != b.root) return "the root rank differs; pass the same root_rank on all ranks";
  if (!same_shape(a, b)) {
    return "the shape differs; give the tensor the same shape on all ranks (allgather, gather, alltoall and scatter "
           "allow another first dimension)";
  }
  if (a.on_device != b.on_device) {
    return "some ranks have it on a GPU and some in the host's memory; pass it from the same kind of device on all "
           "ranks";
  }
  if (a.device_index != b.device_index) {
    return "the GPU differs, of which each rank counts those that it uses in the order of their first use; divide the "
           "model among as many GPUs on all ranks, and use them in the same order, as a broadcast of its parameters "
           "does before all else";
  }
  if (a.captured != b.captured) {
    return "some ranks capture a CUDA graph and some do not; capture the same steps on all ranks";
  }
  if (a.compression != b.compression) return "the compression differs; pass the same compression on all ranks";
  return "the prescale or postscale factor differs; pass the same factors on all ranks";
}

}  // namespace

std::optional<WrongOutput> find_wrong_output(const Descriptor& descriptor,
                                             std::span<const Contribution> contributions) {
  const std::size_t parts = std::max<std::size_t>(descriptor.parts.size(), 1);
  for (std::size_t m = 0; m < contributions.size(); ++m) {
    const Contribution& given = contributions[m];
    if ((given.flags & kHasOutput) == 0) continue;
    for (std::size_t part = 0; part < parts; ++part) {
      std::uint64_t needed = 0;
      for (const Contribution& from : contributions) {
        const bool gets_nothing =
            descriptor.collective == Collective::kGather && static_cast<std::size_t>(descriptor.root) != m;
        if (gets_nothing) continue;
        const bool deals = has_splits(descriptor.collective);
        needed += deals ? from.splits[m] : descriptor.is_group() ? from.rows_of(part) : from.rows;
      }
      const std::uint64_t rows = given.splits[given.splits.size() - parts + part];
      if (rows != needed) return WrongOutput{.member = m, .part = part, .rows = rows, .needed = needed};
    }
  }
  return std::nullopt;
}

void check_rows(const Entry& entry) {
  const Descriptor& descriptor = *entry.descriptor;
  const bool has_output = (entry.flags & kHasOutput) != 0;
  const std::size_t outputs = has_output ? std::max<std::size_t>(descriptor.parts.size(), 1) : 0;
  if (has_output && !descriptor.has_free_rows()) {
    throw Error(ErrorKind::kProtocol, "announced rows of an output that has those of the tensor");
  }
  const bool is_gathered_group = descriptor.is_group() && descriptor.has_free_rows();
  if (entry.splits.size() < outputs ||
      (is_gathered_group && entry.splits.size() - outputs != descriptor.parts.size())) {
    throw Error(ErrorKind::kProtocol, "announced a group or an output without its rows");
  }
  if (descriptor.collective == Collective::kAllreduce && entry.splits.size() > 1) {
    throw Error(ErrorKind::kProtocol, "announced several inputs of an allreduce");
  }
}

std::shared_ptr<const Error> Negotiation::find_mismatch(const Pending& pending) const {
  const Contribution* first = nullptr;
  const Contribution* other = nullptr;
  for (const Contribution& contribution : pending.contributions) {
    if (!contribution.present) continue;
    if (first == nullptr) first = &contribution;
    if (contribution.signature == first->signature) continue;
    // What is no tensor of a group is told first: not all may have a group of so many.
    const bool in_part = differing_part(*first->descriptor, *contribution.descriptor).has_value();
    if (other == nullptr || !in_part) other = &contribution;
  }
  if (other == nullptr) return nullptr;
  const std::optional<std::size_t> part = differing_part(*first->descriptor, *other->descriptor);
  std::map<std::string, std::vector<int>> ranks_by_text;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const Contribution& contribution = pending.contributions[m];
    if (!contribution.present) continue;
    // One descriptor stands for all first dimensions of a gather, alltoall or scatter; what this rank has was announced.
    Descriptor submitted = part ? *contribution.descriptor->parts[*part] : *contribution.descriptor;
    if (submitted.shape.dims > 0 && submitted.has_free_rows()) submitted.shape.extent[0] = contribution.rows_of(part);
    ranks_by_text[submitted.to_string()].push_back(static_cast<int>(m));
  }
  std::map<int, std::string> lines;
  for (const auto& [text, ranks] : ranks_by_text) lines[ranks.front()] = ranks_text(ranks) + ": " + text;
  std::string message =
      "'" + (part ? first->descriptor->parts[*part]->name : pending.descriptor->name) + "' was submitted differently:";
  for (const auto& [rank, line] : lines) message += " " + line + ";";
  message.back() = '.';
  return mismatch(message + " Remedy: " +
                  difference(part ? *first->descriptor->parts[*part] : *first->descriptor,
                             part ? *other->descriptor->parts[*part] : *other->descriptor) +
                  ".");
}

// What can be wrong although all descriptors agree.
std::shared_ptr<const Error> Negotiation::check_complete(const Pending& pending) const {
  const Descriptor& descriptor = *pending.descriptor;
  std::vector<int> absent;
  std::vector<std::uint64_t> rows(std::max<std::size_t>(descriptor.parts.size(), 1));  // of all members up to here
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const Contribution& contribution = pending.contributions[m];
    if (!contribution.present) {
      absent.push_back(static_cast<int>(m));
      continue;
    }
    if (!fits_memory(contribution, descriptor, rows)) {
      return mismatch(title(descriptor) + ": rank " + std::to_string(members_[m]) +
                      " has so many rows that no memory holds those of all ranks.");
    }
    if (!has_splits(descriptor.collective)) continue;
    const std::size_t has_output = (contribution.flags & kHasOutput) != 0 ? 1 : 0;
    const auto splits = std::span(contribution.splits).first(contribution.splits.size() - has_output);
    const std::uint64_t sum = std::accumulate(splits.begin(), splits.end(), std::uint64_t{0});
    const bool too_large =
        std::any_of(splits.begin(), splits.end(), [&](std::uint64_t split) { return split > contribution.rows; });
    if (splits.size() != members_.size() || sum != contribution.rows || too_large) {
      return mismatch(title(descriptor) + ": rank " + std::to_string(members_[m]) + " gave " +
                      std::to_string(splits.size()) + " splits that add up to " + std::to_string(sum) + " for " +
                      std::to_string(contribution.rows) + " rows and " + std::to_string(members_.size()) +
                      " ranks. Remedy: give one split for each rank, adding up to the first dimension.");
    }
  }
  if (has_root(descriptor.collective) &&
      (descriptor.root < 0 || descriptor.root >= static_cast<int>(members_.size()))) {
    return mismatch(title(descriptor) + ": root rank " + std::to_string(descriptor.root) + " is not one of the " +
                    std::to_string(members_.size()) + " ranks. Remedy: pass a root_rank of the process set.");
  }
  if (!absent.empty() && descriptor.collective != Collective::kAllreduce) {
    return mismatch(title(descriptor) + ": " + ranks_text(absent) +
                    " joined, and only allreduce works with joined ranks. Remedy: call join() on all ranks "
                    "after the last " +
                    std::string(name_of(descriptor.collective)) + ".");
  }
  // Where all are there: others have failed above.
  if (const auto wrong = absent.empty() ? find_wrong_output(descriptor, pending.contributions) : std::nullopt) {
    return mismatch(title(descriptor.is_group() ? *descriptor.parts[wrong->part] : descriptor) + ": rank " +
                    std::to_string(members_[wrong->member]) + " gave an output of " + std::to_string(wrong->rows) +
                    " rows, and its result has " + std::to_string(wrong->needed) +
                    ", which come from all ranks. Nothing was written. Remedy: pass an output of so many rows "
                    "there, or none.");
  }
  if (!absent.empty() && descriptor.captured) {
    return mismatch(title(descriptor) + ": " + ranks_text(absent) +
                    " joined, and takes part in no replay of a CUDA graph. Remedy: "
                    "capture before any rank calls join().");
  }
  return nullptr;
}

std::string Negotiation::ranks_text(const std::vector<int>& member_indices) const {
  std::vector<Rank> ranks;
  ranks.reserve(member_indices.size());
  for (const int m : member_indices) ranks.push_back(members_[m]);
  return list_ranks(ranks);
}

}  // namespace ringcore::engine
