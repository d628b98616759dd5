#include "engine/record.hpp"

#include <cstring>

namespace ringcore::engine {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kProtocol, "a control record is malformed: " + what);
}

// In `dims`: the tensors lie on GPUs, and the operation becomes part of a CUDA graph.
constexpr std::uint8_t kOnDevice = 0x80;
constexpr std::uint8_t kCaptured = 0x40;

// The fixed part of an encoded descriptor; the name follows.
struct PackedDescriptor {
  std::uint8_t collective;
  std::uint8_t dtype;
  std::uint8_t op;
  std::uint8_t dims;
  std::int32_t root;
  std::uint64_t extent[Shape::kMaxDims];
  double prescale;
  double postscale;
  std::uint32_t parts;
  std::uint16_t name_bytes;
  std::uint8_t device_index;
  std::uint8_t compression;
};
static_assert(sizeof(PackedDescriptor) == kDescriptorBytes);

// The parts of a group follow the name: dtype, where they lie on devices the number of that, number of dimensions, and
// the extents in groups of 7 bits, the lowest first, so that thousands of tensors fit into one record.
void append_part(std::vector<std::byte>& bytes, const Descriptor& part) {
  bytes.push_back(static_cast<std::byte>(part.dtype));
  if (part.on_device) bytes.push_back(static_cast<std::byte>(part.device_index));
  bytes.push_back(static_cast<std::byte>(part.shape.dims));
  for (int i = 0; i < part.shape.dims; ++i) {
    std::uint64_t extent = part.shape.extent[i];
    for (; extent >= 0x80; extent >>= 7) bytes.push_back(static_cast<std::byte>(extent | 0x80));
    bytes.push_back(static_cast<std::byte>(extent));
  }
}

// Reads what append_part writes, and trusts nothing.
class PartReader {
 public:
  explicit PartReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  void read(Descriptor& part) {
    const std::uint8_t dtype = next();
    if (dtype >= kDTypeCount) refuse("an unknown dtype in a group");
    part.dtype = static_cast<DType>(dtype);
    if (part.on_device) part.device_index = next();
    part.shape.dims = next();
    if (part.shape.dims > Shape::kMaxDims) refuse("too many dimensions in a group");
    for (int i = 0; i < part.shape.dims; ++i) part.shape.extent[i] = next_extent();
  }

 private:
  std::uint8_t next() {
    if (bytes_.empty()) refuse("a group that ends early");
    const auto byte = static_cast<std::uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return byte;
  }

  std::uint64_t next_extent() {
    std::uint64_t extent = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      const std::uint64_t byte = next();
      extent |= (byte & 0x7f) << shift;
      if (byte < 0x80) return extent;
    }
    refuse("a shape of no memory");
  }

  std::span<const std::byte> bytes_;
};

// What a part has in common with its group.
std::shared_ptr<Descriptor> part_of(const Descriptor& group, std::size_t index) {
  auto part = std::make_shared<Descriptor>();
  part->name = group.name + "[" + std::to_string(index) + "]";
  part->collective = group.collective;
  part->op = group.op;
  part->root = group.root;
  part->prescale = group.prescale;
  part->postscale = group.postscale;
  part->compression = group.compression;
  part->on_device = group.on_device;
  part->captured = group.captured;
  return part;
}

void check_shape(const Descriptor& descriptor) {
  std::uint64_t size = size_of(descriptor.dtype);
  for (int i = 0; i < descriptor.shape.dims; ++i) {
    // The product is asked for without its zeros: it must not wrap on the way to them.
    const std::uint64_t extent = descriptor.shape.extent[i];
    if (extent > 0 && __builtin_mul_overflow(size, extent, &size)) refuse("a shape of no memory");
  }
  if (size > static_cast<std::uint64_t>(PTRDIFF_MAX)) refuse("a shape of no memory");
}

void check_length(std::uint32_t bytes, std::size_t header) {
  if (bytes < header || bytes > kMaxRecordBytes || bytes % 8 != 0) refuse("length " + std::to_string(bytes));
}

// The fields that all records begin with.
ShortHeader beginning_of(std::span<const std::byte> bytes) {
  ShortHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

std::optional<RecordView> parse_tree_record(std::span<const std::byte> bytes) {
  const ShortHeader header = beginning_of(bytes);
  check_length(header.bytes, sizeof(header));
  if (header.flags >= 8 || header.bytes - sizeof(header) < header.flags) {
    refuse("padding of " + std::to_string(header.flags) + " bytes");
  }
  if (bytes.size() < header.bytes) return std::nullopt;
  RecordView view;
  view.header = {.bytes = header.bytes,
                 .type = header.type,
                 .process_set = header.process_set,
                 .epoch = header.epoch,
                 .sequence = header.sequence};
  view.whole = bytes.first(header.bytes);
  view.payload = view.whole.subspan(sizeof(header), header.bytes - sizeof(header) - header.flags);
  return view;
}

}  // namespace

bool is_tree_record(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof(ShortHeader) && beginning_of(bytes).type == RecordType::kTree;
}

std::optional<RecordView> parse_record(std::span<const std::byte> bytes) {
  if (is_tree_record(bytes)) return parse_tree_record(bytes);
  if (bytes.size() < sizeof(RecordHeader)) return std::nullopt;
  RecordView view;
  std::memcpy(&view.header, bytes.data(), sizeof(RecordHeader));
  const RecordHeader& header = view.header;
  check_length(header.bytes, sizeof(header));
  if (static_cast<int>(header.type) >= kRecordTypeCount) refuse("type " + std::to_string(int(header.type)));
  const std::uint64_t content = sizeof(RecordHeader) + std::uint64_t{header.descriptor_bytes} +
                                std::uint64_t{header.splits_count} * 8 + header.payload_bytes;
  if (content > header.bytes || header.bytes - content >= 8) {
    refuse("parts of " + std::to_string(content) + " bytes in " + std::to_string(header.bytes));
  }
  if (bytes.size() < header.bytes) return std::nullopt;
  view.whole = bytes.first(header.bytes);
  std::span<const std::byte> rest = bytes.subspan(sizeof(RecordHeader));
  view.splits = rest.first(std::size_t{header.splits_count} * 8);
  rest = rest.subspan(view.splits.size());
  view.payload = rest.first(header.payload_bytes);
  view.descriptor = rest.subspan(header.payload_bytes, header.descriptor_bytes);
  return view;
}

std::vector<std::byte> build_record(RecordHeader header, std::span<const std::byte> descriptor,
                                    std::span<const std::uint64_t> splits, std::span<const std::byte> payload) {
  header.descriptor_bytes = static_cast<std::uint32_t>(descriptor.size());
  header.splits_count = static_cast<std::uint32_t>(splits.size());
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  const std::size_t content = sizeof(header) + descriptor.size() + splits.size_bytes() + payload.size();
  header.bytes = static_cast<std::uint32_t>((content + 7) / 8 * 8);
  std::vector<std::byte> record(header.bytes);
  std::byte* at = record.data();
  const auto append = [&at](const void* data, std::size_t bytes) {
    if (bytes > 0) std::memcpy(at, data, bytes);
    at += bytes;
  };
  append(&header, sizeof(header));
  append(splits.data(), splits.size_bytes());  // first: they and the payload stay aligned to 8 bytes
  append(payload.data(), payload.size());
  append(descriptor.data(), descriptor.size());
  return record;
}

std::vector<std::byte> encode(const Descriptor& descriptor) {
  PackedDescriptor packed{};
  packed.collective = static_cast<std::uint8_t>(descriptor.collective);
  packed.dtype = static_cast<std::uint8_t>(descriptor.dtype);
  packed.op = static_cast<std::uint8_t>(descriptor.op);
  packed.dims = descriptor.shape.dims | (descriptor.on_device ? kOnDevice : 0) | (descriptor.captured ? kCaptured : 0);
  packed.root = descriptor.root;
  std::memcpy(packed.extent, descriptor.shape.extent.data(), sizeof(packed.extent));
  packed.prescale = descriptor.prescale;
  packed.postscale = descriptor.postscale;
  packed.parts = static_cast<std::uint32_t>(descriptor.parts.size());
  packed.name_bytes = static_cast<std::uint16_t>(descriptor.name.size());
  packed.device_index = descriptor.device_index;
  packed.compression = static_cast<std::uint8_t>(descriptor.compression);
  std::vector<std::byte> bytes(sizeof(packed) + descriptor.name.size());
  std::memcpy(bytes.data(), &packed, sizeof(packed));
  std::memcpy(bytes.data() + sizeof(packed), descriptor.name.data(), descriptor.name.size());
  for (const auto& part : descriptor.parts) append_part(bytes, *part);
  return bytes;
}

Descriptor decode_descriptor(std::span<const std::byte> bytes) {
  PackedDescriptor packed;
  if (bytes.size() < sizeof(packed)) refuse("descriptor of " + std::to_string(bytes.size()) + " bytes");
  std::memcpy(&packed, bytes.data(), sizeof(packed));
  const bool on_device = (packed.dims & kOnDevice) != 0;
  const bool captured = (packed.dims & kCaptured) != 0;
  packed.dims &= static_cast<std::uint8_t>(~(kOnDevice | kCaptured));
  if (packed.collective >= kCollectiveCount || packed.dtype >= kDTypeCount || packed.op >= kReduceOpCount ||
      packed.compression >= kCompressionCount || packed.dims > Shape::kMaxDims ||
      packed.name_bytes > bytes.size() - sizeof(packed) || packed.name_bytes > kMaxNameBytes ||
      packed.parts > bytes.size()) {
    refuse("descriptor fields out of range");
  }
  Descriptor descriptor;
  descriptor.collective = static_cast<Collective>(packed.collective);
  descriptor.dtype = static_cast<DType>(packed.dtype);
  descriptor.op = static_cast<ReduceOp>(packed.op);
  descriptor.root = packed.root;
  descriptor.on_device = on_device;
  descriptor.captured = captured;
  descriptor.device_index = packed.device_index;
  descriptor.compression = static_cast<Compression>(packed.compression);
  descriptor.shape.dims = packed.dims;
  std::memcpy(descriptor.shape.extent.data(), packed.extent, sizeof(packed.extent));
  check_shape(descriptor);
  descriptor.prescale = packed.prescale;
  descriptor.postscale = packed.postscale;
  descriptor.name.assign(reinterpret_cast<const char*>(bytes.data()) + sizeof(packed), packed.name_bytes);
  PartReader reader(bytes.subspan(sizeof(packed) + packed.name_bytes));
  descriptor.parts.reserve(packed.parts);
  for (std::uint32_t i = 0; i < packed.parts; ++i) {
    const std::shared_ptr<Descriptor> part = part_of(descriptor, i);
    reader.read(*part);
    check_shape(*part);
    descriptor.parts.push_back(part);
  }
  if (!reader.empty()) refuse("bytes behind a descriptor");
  return descriptor;
}

}  // namespace ringcore::engine
