#include "engine/request.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/record.hpp"

namespace ringcore::engine {
namespace {

// Multiply-and-fold mixing of 64-bit words (the construction of wyhash and its kin).
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ 0x9e3779b97f4a7c15ULL) * (b ^ 0xd6e8feb86659fd93ULL);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

bool sums(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAverage; }

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed) {
  std::uint64_t hash = mix(seed, bytes.size());
  while (bytes.size() >= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    hash = mix(hash, word);
    bytes.remove_prefix(8);
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, bytes.data(), bytes.size());
  return mix(hash, tail);
}

ReduceOp summing(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

double final_scale(const Descriptor& descriptor, int ranks) {
  return descriptor.op == ReduceOp::kAverage ? descriptor.postscale / ranks : descriptor.postscale;
}

Scales host_scales(const Descriptor& descriptor, int ranks) {
  const double result = final_scale(descriptor, ranks);
  // Only then what is reduced is the same before and after.
  const bool keeps_order = descriptor.op != ReduceOp::kProduct && (descriptor.prescale > 0 || sums(descriptor.op));
  const bool once = is_half(descriptor.dtype) && keeps_order;
  return once ? Scales{1.0, descriptor.prescale * result} : Scales{descriptor.prescale, result};
}

std::vector<std::uint64_t> dealt_blocks(std::uint64_t rows, std::uint64_t row_elements, int ranks) {
  std::vector<std::uint64_t> blocks(ranks);
  for (int r = 0; r < ranks; ++r) {
    blocks[r] = (rows / ranks + (static_cast<std::uint64_t>(r) < rows % ranks ? 1 : 0)) * row_elements;
  }
  return blocks;
}

Shape Shape::of(std::span<const std::uint64_t> extents) {
  Shape shape;
  for (const std::uint64_t extent : extents) {
    if (shape.dims < kMaxDims) {
      shape.extent[shape.dims++] = extent;
    } else {
      shape.extent[kMaxDims - 1] *= extent;
    }
  }
  return shape;
}

std::uint64_t Shape::elements() const {
  std::uint64_t product = 1;
  for (int i = 0; i < dims; ++i) product *= extent[i];
  return product;
}

std::uint64_t Shape::row_elements() const {
  std::uint64_t product = 1;
  for (int i = 1; i < dims; ++i) product *= extent[i];
  return product;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < dims; ++i) text += (i > 0 ? ", " : "") + std::to_string(extent[i]);
  return text + "]";
}

std::uint64_t Descriptor::name_hash() const { return hash_bytes(name); }

std::uint64_t Descriptor::signature() const {
  std::uint64_t hash = name_hash();
  hash = mix(hash, static_cast<std::uint64_t>(collective) | static_cast<std::uint64_t>(dtype) << 8 |
                       static_cast<std::uint64_t>(op) << 16 | static_cast<std::uint64_t>(shape.dims) << 24 |
                       static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32);
  const int first = has_free_rows() ? 1 : 0;
  for (int i = first; i < shape.dims; ++i) hash = mix(hash, shape.extent[i]);
  for (const auto& part : parts) {
    hash = mix(hash, static_cast<std::uint64_t>(part->device_index) << 16 |
                         static_cast<std::uint64_t>(part->dtype) << 8 | part->shape.dims);
    for (int i = first; i < part->shape.dims; ++i) hash = mix(hash, part->shape.extent[i]);
  }
  hash = mix(hash, std::bit_cast<std::uint64_t>(prescale));
  hash = mix(hash, std::bit_cast<std::uint64_t>(postscale));
  return mix(hash, static_cast<std::uint64_t>(compression) << 48 | static_cast<std::uint64_t>(device_index) << 40 |
                       parts.size() << 2 | (captured ? 2 : 0) | (on_device ? 1 : 0));
}

std::string Descriptor::to_string() const {
  std::string text(name_of(collective));
  if (collective == Collective::kBarrier) return text;
  if (reduces(collective)) {
    text += " " + std::string(name_of(op));
  }
  text += is_group() ? " of a group of " + std::to_string(parts.size()) + " tensors"
                     : " of " + std::string(name_of(dtype)) + " " + shape.to_string();
  if (on_device)
    text += device_index == 0 ? " on a GPU" : " on GPU " + std::to_string(device_index + 1) + " of its own";
  if (captured) text += ", captured into a CUDA graph";
  if (collective == Collective::kBroadcast || collective == Collective::kScatter)
    text += " from root " + std::to_string(root);
  if (collective == Collective::kReduce || collective == Collective::kGather)
    text += " to root " + std::to_string(root);
  if (prescale != 1.0) text += ", prescale " + std::to_string(prescale);
  if (postscale != 1.0) text += ", postscale " + std::to_string(postscale);
  if (compression != Compression::kNone) text += ", compression " + std::string(name_of(compression));
  return text;
}

std::string title(const Descriptor& descriptor) {
  return std::string(name_of(descriptor.collective)) + " '" + descriptor.name + "'";
}

void Call::check() const {
  if (name.empty() || name.size() > kMaxNameBytes) {
    throw Error(ErrorKind::kInvalidArgument,
                "a name has 1 to " + std::to_string(kMaxNameBytes) + " bytes, not " + std::to_string(name.size()));
  }
  if (static_cast<int>(op) >= kReduceOpCount || static_cast<int>(collective) >= kCollectiveCount ||
      static_cast<int>(compression) >= kCompressionCount) {
    throw Error(ErrorKind::kInvalidArgument, "'" + name + "': there is no such operation");
  }
}

namespace {

// Whether the shapes are equal, or, where the result has rows of its own, in all but these.
bool fits(const Shape& output, const Shape& input, bool has_own_rows) {
  if (!has_own_rows) return output == input;
  return output.dims == std::max<int>(input.dims, 1) && output.row_elements() == input.row_elements() &&
         std::equal(output.extent.begin() + 1, output.extent.begin() + output.dims, input.extent.begin() + 1);
}

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

void check_output(const Call& call, const Array& input, const Array& output) {
  if (output.device != input.device) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + call.name + "': input and output lie on different devices. Remedy: pass both on one.");
  }
  const bool has_own_rows = ringcore::engine::has_own_result(call.collective);
  if (output.dtype != input.dtype || !fits(output.shape, input.shape, has_own_rows)) {
    const auto text = [](const Array& array) {
      return std::string(name_of(array.dtype)) + " " + array.shape.to_string();
    };
    throw Error(ErrorKind::kInvalidArgument,
                "'" + call.name + "': the output is " + text(output) + ", the input " + text(input) +
                    ". Remedy: give them one dtype and one shape" +
                    (has_own_rows ? ", but for the first dimension, which is that of the result." : "."));
  }
  // Of a gather, this rank's rows may lie anywhere in the result.
  const std::size_t element = size_of(input.dtype);
  if (has_own_rows && input.device != kHost) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + call.name +
                    "': on a GPU results have memory of the engine's. Remedy: leave the output out, and "
                    "copy the result.");
  }
  const bool apart = has_splits(call.collective) || (!has_own_rows && output.data != input.data);
  if (apart && overlap(input.data, input.shape.elements() * element, output.data, output.shape.elements() * element)) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + call.name +
                    "': input and output share memory, and what is received would overwrite what is still to be sent. "
                    "Remedy: pass another output" +
                    (has_own_rows ? "." : ", or the tensor itself."));
  }
}

}  // namespace

std::shared_ptr<Operation> make_operation(const Call& call, const Array& input, const Array* output) {
  auto operation = std::make_shared<Operation>();
  Descriptor& descriptor = operation->descriptor;
  operation->input = input.data;
  descriptor.dtype = input.dtype;
  descriptor.shape = input.shape;
  if (output != nullptr) {
    check_output(call, input, *output);
    operation->output = output->data;
    operation->output_rows = output->shape.rows();
  }
  descriptor.name = call.name;
  descriptor.collective = call.collective;
  descriptor.op = call.op;
  descriptor.root = call.root;
  descriptor.prescale = call.prescale;
  descriptor.postscale = call.postscale;
  descriptor.compression = call.compression;
  if (input.device != kHost) {
    descriptor.on_device = true;
    operation->on_device = std::make_unique<OnDevice>();
    operation->on_device->device = input.device;
    operation->on_device->stream = input.stream;
    operation->on_device->input = operation->input;
    operation->on_device->output = operation->output;
  }
  operation->process_set = call.process_set;
  operation->priority = call.priority;
  return operation;
}

namespace {

std::size_t padded(std::size_t bytes) {
  return (bytes + Memory::kAlignment - 1) / Memory::kAlignment * Memory::kAlignment;
}

// How far behind its own beginning the next part of a row begins.
std::size_t padded_bytes(const Operation& part) { return padded(part.bytes()); }

// Whether the group's parts are reduced in place, are of one dtype, and lie one behind the other, each at the next
// multiple of Memory::kAlignment.
bool lies_in_a_row(const Operation& group, bool owns_gaps) {
  if (group.descriptor.collective != Collective::kAllreduce) return false;
  const Operation& first = *group.parts.front();
  const std::byte* at = first.output;
  return std::all_of(group.parts.begin(), group.parts.end(), [&](const auto& part) {
    if (part->output != at || part->input != at || part->descriptor.dtype != first.descriptor.dtype) return false;
    at += padded_bytes(*part);
    return owns_gaps || part == group.parts.back() || part->bytes() == padded_bytes(*part);
  });
}

// What lies between the parts and is no number would take a block of their values with it.
void clear_gaps(const Operation& group) {
  for (const auto& part : group.parts) {
    if (part == group.parts.back()) break;
    std::fill_n(part->output + part->bytes(), padded_bytes(*part) - part->bytes(), std::byte{});
  }
}

}  // namespace

std::shared_ptr<Operation> make_group(const std::string& name, std::vector<std::shared_ptr<Operation>> parts,
                                      bool owns_gaps) {
  auto group = std::make_shared<Operation>();
  const Descriptor& first = parts.front()->descriptor;
  group->descriptor = {.name = name,
                       .collective = first.collective,
                       .dtype = {},
                       .op = first.op,
                       .root = first.root,
                       .shape = {},
                       .prescale = first.prescale,
                       .postscale = first.postscale,
                       .compression = first.compression,
                       .on_device = first.on_device,
                       .parts = {}};
  group->process_set = parts.front()->process_set;
  group->priority = parts.front()->priority;
  group->unfinished = parts.size();
  group->descriptor.parts.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Operation& part = *parts[i];
    if (part.descriptor.on_device != first.on_device) {
      throw Error(ErrorKind::kInvalidArgument, "'" + name +
                                                   "': some tensors of a group lie on GPUs, and some in the host's "
                                                   "memory. Remedy: submit a group for each.");
    }
    part.descriptor.name = name + "[" + std::to_string(i) + "]";
    part.whole = group.get();
    group->descriptor.parts.emplace_back(parts[i], &part.descriptor);
    if (first.collective == Collective::kAllgather) group->splits.push_back(part.descriptor.shape.rows());
  }
  group->parts = std::move(parts);
  if (lies_in_a_row(*group, owns_gaps)) {
    group->input = group->output = group->parts.front()->output;
    if (owns_gaps && first.compression != Compression::kNone) clear_gaps(*group);
  }
  return group;
}

std::size_t bytes_in_a_row(const Descriptor& group) {
  std::size_t end = 0;
  for (const auto& part : group.parts) end = padded(end) + part->shape.elements() * size_of(part->dtype);
  return end;
}

bool can_be_renewed(const std::shared_ptr<Operation>& group, const Call& call, std::size_t parts) {
  if (group == nullptr || group.use_count() != 1 || !group->done() || group->error != nullptr || group->in_use) {
    return false;
  }
  const Descriptor& descriptor = group->descriptor;
  return call.collective == Collective::kAllreduce && descriptor.collective == call.collective &&
         descriptor.name == call.name && descriptor.op == call.op && descriptor.prescale == call.prescale &&
         descriptor.postscale == call.postscale && descriptor.compression == call.compression &&
         !descriptor.on_device && descriptor.parts.size() == parts && group->process_set == call.process_set &&
         group->priority == call.priority && !group->on_done;
}

bool place_again(Operation& part, const Array& input, const Array& output) {
  const auto is_alike = [&part](const Array& array) {
    return array.device == kHost && array.dtype == part.descriptor.dtype && array.shape == part.descriptor.shape;
  };
  if (!is_alike(input) || !is_alike(output)) return false;
  part.input = input.data;
  part.output = output.data;
  return true;
}

void renew(Operation& group) {
  group.renewed = true;
  group.state.store(OperationState::kSubmitted, std::memory_order_relaxed);
  group.awaited = group.only_thread = false;
  group.stall_reported = group.cancel_sent = group.waited_for = false;
  group.unfinished = group.parts.size();
  group.number = 0;
  group.carried_out = false;
  group.carried_out_by.clear();
  group.kept.clear();
  const bool in_a_row = lies_in_a_row(group, false);
  group.input = group.output = in_a_row ? group.parts.front()->output : nullptr;
}

}  // namespace ringcore::engine
