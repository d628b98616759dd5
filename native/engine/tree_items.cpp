#include "engine/tree_items.hpp"

#include <cstring>
#include <utility>

#include "engine/tree_data.hpp"

namespace ringcore::engine {
namespace {

// An item begins with a byte: its kind in the lowest three bits, and then:
constexpr std::uint8_t kKind = 7;
constexpr std::uint8_t kWhole = 8;   // about all members that this direction is about: no range follows
constexpr std::uint8_t kNext = 16;   // at the position behind the item before: none follows
constexpr std::uint8_t kShows = 32;  // of a kOpen
// An entry goes on with its flags, and with a byte: its type in the lowest three bits, and what follows:
constexpr std::uint8_t kType = 7;
constexpr std::uint8_t kDescribed = 8;  // a descriptor; of what is no operation, a name
constexpr std::uint8_t kRows = 16;
constexpr std::uint8_t kLocation = 32;
constexpr std::uint8_t kPriority = 64;
constexpr std::uint8_t kVariable = 128;  // splits or a payload

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kProtocol, "a record of the tree is malformed: " + what);
}

void put_number(std::vector<std::byte>& out, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) out.push_back(static_cast<std::byte>(number | 0x80));
  out.push_back(static_cast<std::byte>(number));
}

void put_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void put_hash(std::vector<std::byte>& out, std::uint64_t hash) { put_bytes(out, std::as_bytes(std::span(&hash, 1))); }

// Small also when negative.
std::uint64_t folded(std::int32_t number) {
  const auto wide = static_cast<std::int64_t>(number);
  return static_cast<std::uint64_t>(wide < 0 ? -2 * wide - 1 : 2 * wide);
}

std::int32_t unfolded(std::uint64_t number) {
  const auto half = static_cast<std::int64_t>(number / 2);
  return static_cast<std::int32_t>(number % 2 == 0 ? half : -half - 1);
}

void put_variable(std::vector<std::byte>& out, const Entry& entry) {
  put_number(out, entry.splits.size());
  put_bytes(out, std::as_bytes(std::span(entry.splits)));
  put_number(out, entry.payload.size());
  put_bytes(out, entry.payload);
}

}  // namespace

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size()) refuse("it ends early");
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::uint8_t byte() { return static_cast<std::uint8_t>(take(1).front()); }

  std::uint64_t number() {
    std::uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint64_t next = byte();
      number |= (next & 0x7f) << shift;
      if (next < 0x80) return number;
    }
    refuse("a number of more than 64 bits");
  }

  std::uint64_t hash() {
    std::uint64_t hash = 0;
    std::memcpy(&hash, take(sizeof(hash)).data(), sizeof(hash));
    return hash;
  }

 private:
  std::span<const std::byte> bytes_;
};

bool TreeItem::says_the_same(const TreeItem& other) const {
  const Entry& a = entry;
  const Entry& b = other.entry;
  return kind == other.kind && position == other.position && a.type == b.type && a.flags == b.flags &&
         a.signature == b.signature && a.name_hash == b.name_hash && a.rows == b.rows && a.location == b.location &&
         a.priority == b.priority && a.splits == b.splits && carries_data(a) == carries_data(b) &&
         (carries_data(a) || a.payload == b.payload);
}

void TreeWriter::add(const TreeItem& item) {
  if (item.kind == run_kind_ && run_ > 0 && item.position == run_from_ + run_) {
    ++run_;
    return;
  }
  write_run();
  switch (item.kind) {
    case TreeItem::Kind::kAlike:
    case TreeItem::Kind::kCarriedOut:
      run_kind_ = item.kind;
      run_from_ = item.position;
      run_ = 1;
      return;
    case TreeItem::Kind::kEntry: return write_entry(item);
    case TreeItem::Kind::kEnd:
    case TreeItem::Kind::kBroken: return write_end(item);
    case TreeItem::Kind::kOpen:
    case TreeItem::Kind::kLast:
      close_before(1);
      body_.push_back(static_cast<std::byte>(static_cast<int>(item.kind) | (item.open ? kShows : 0)));
      return;
  }
}

void TreeWriter::write_run() {
  if (run_ == 0) return;
  constexpr std::size_t kMost = 1 + 2 * 10;
  close_before(kMost);
  const bool of_rounds = run_kind_ == TreeItem::Kind::kAlike;
  const bool next = of_rounds && !body_.empty() && run_from_ == next_position_;
  body_.push_back(static_cast<std::byte>(static_cast<int>(run_kind_) | (next ? kNext : 0)));
  if (!next) put_number(body_, run_from_);
  put_number(body_, run_);
  if (of_rounds) next_position_ = run_from_ + run_;
  run_ = 0;
}

void TreeWriter::write_entry(const TreeItem& item) {
  const Entry& entry = item.entry;
  std::vector<std::byte> descriptor;
  bool describes = false;
  std::uint64_t usual_rows = 0;
  if (entry.type == RecordType::kOperation) {
    describes = !described_.use(0, entry.signature);
    if (describes) described_.describe(0, entry.signature, entry.descriptor);
    if (describes) descriptor = encode(*entry.descriptor);
    usual_rows = described_.find(entry.signature)->shape.rows();
  }
  constexpr std::size_t kMostFixed = 100;
  close_before(kMostFixed + descriptor.size() + entry.splits.size() * 8 + entry.payload.size());
  const bool whole = item.begin == begin_ && item.end == end_;
  const bool next = !body_.empty() && item.position == next_position_;
  const bool named = entry.type != RecordType::kOperation && entry.name_hash != 0;
  const bool variable = !entry.splits.empty() || !entry.payload.empty();
  body_.push_back(static_cast<std::byte>((whole ? kWhole : 0) | (next ? kNext : 0)));
  body_.push_back(static_cast<std::byte>(entry.flags));
  body_.push_back(static_cast<std::byte>(
      static_cast<int>(entry.type) | (describes || named ? kDescribed : 0) | (entry.rows != usual_rows ? kRows : 0) |
      (entry.location != 0 ? kLocation : 0) | (entry.priority != 0 ? kPriority : 0) | (variable ? kVariable : 0)));
  if (!whole) put_number(body_, static_cast<std::uint64_t>(item.begin));
  if (!whole) put_number(body_, static_cast<std::uint64_t>(item.end - item.begin));
  if (!next) put_number(body_, item.position);
  if (entry.type == RecordType::kOperation) put_hash(body_, entry.signature);
  if (named) put_hash(body_, entry.name_hash);
  if (entry.rows != usual_rows) put_number(body_, entry.rows);
  if (entry.location != 0) put_number(body_, entry.location);
  if (entry.priority != 0) put_number(body_, folded(entry.priority));
  if (variable) put_variable(body_, entry);
  if (describes) put_number(body_, descriptor.size());
  put_bytes(body_, descriptor);
  next_position_ = item.position + 1;
}

void TreeWriter::write_end(const TreeItem& item) {
  const TreeEnd& why = *item.why;
  constexpr std::size_t kMostFixed = 40;
  close_before(kMostFixed + why.why.size());
  body_.push_back(static_cast<std::byte>(item.kind));
  put_number(body_, static_cast<std::uint64_t>(why.member));
  put_number(body_, why.removes ? 1 : 0);
  put_number(body_, static_cast<std::uint64_t>(why.first_left));
  put_number(body_, why.why.size());
  put_bytes(body_, std::as_bytes(std::span(why.why)));
}

// A record has room for what comes next, or a new one begins.
void TreeWriter::close_before(std::size_t bytes) {
  if (body_.empty() || body_.size() + bytes <= kMaxTreeBytes) return;
  bodies_.push_back(std::exchange(body_, {}));
}

std::vector<std::vector<std::byte>> TreeWriter::take() {
  write_run();
  if (!body_.empty()) bodies_.push_back(std::exchange(body_, {}));
  return std::exchange(bodies_, {});
}

std::vector<TreeItem> TreeReader::read(std::span<const std::byte> body) {
  std::vector<TreeItem> items;
  ByteReader bytes(body);
  while (!bytes.empty()) {
    const std::uint8_t first = bytes.byte();
    if ((first & kKind) > static_cast<int>(TreeItem::Kind::kCarriedOut)) refuse("an unknown item");
    const auto kind = static_cast<TreeItem::Kind>(first & kKind);
    switch (kind) {
      case TreeItem::Kind::kEntry: items.push_back(read_entry(bytes, first)); break;
      case TreeItem::Kind::kAlike: {
        const std::uint64_t from = (first & kNext) != 0 ? next_position_ : bytes.number();
        const std::uint64_t count = bytes.number();
        items.push_back({.kind = kind, .begin = begin_, .end = end_, .position = from, .count = count});
        next_position_ = from + count;
        break;
      }
      case TreeItem::Kind::kCarriedOut: {
        const std::uint64_t from = bytes.number();
        items.push_back({.kind = kind, .position = from, .count = bytes.number()});
        break;
      }
      case TreeItem::Kind::kEnd:
      case TreeItem::Kind::kBroken: items.push_back(read_end(bytes, kind)); break;
      case TreeItem::Kind::kOpen:
      case TreeItem::Kind::kLast: items.push_back({.kind = kind, .open = (first & kShows) != 0}); break;
    }
  }
  return items;
}

TreeItem TreeReader::read_entry(ByteReader& bytes, std::uint8_t first) {
  TreeItem item{.begin = begin_, .end = end_};
  Entry& entry = item.entry;
  entry.flags = bytes.byte();
  const std::uint8_t fields = bytes.byte();
  entry.type = static_cast<RecordType>(fields & kType);
  if (entry.type > RecordType::kStandstill) refuse("an entry of no log");
  if ((first & kWhole) == 0) {
    const std::uint64_t begin = bytes.number();
    const std::uint64_t count = bytes.number();
    const auto limit = static_cast<std::uint64_t>(end_);
    if (begin < static_cast<std::uint64_t>(begin_) || begin >= limit || count == 0 || count > limit - begin) {
      refuse("it speaks for members that are not its own");
    }
    item.begin = static_cast<int>(begin);
    item.end = static_cast<int>(begin + count);
  }
  item.position = (first & kNext) != 0 ? next_position_ : bytes.number();
  next_position_ = item.position + 1;
  entry.position = item.position;
  if (entry.type == RecordType::kOperation) entry.signature = bytes.hash();
  if (entry.type != RecordType::kOperation && (fields & kDescribed) != 0) entry.name_hash = bytes.hash();
  const bool has_rows = (fields & kRows) != 0;
  if (has_rows) entry.rows = bytes.number();
  if ((fields & kLocation) != 0) entry.location = bytes.number();
  if ((fields & kPriority) != 0) entry.priority = unfolded(bytes.number());
  if ((fields & kVariable) != 0) {
    const std::uint64_t splits = bytes.number();
    if (splits > kMaxRecordBytes / 8) refuse("too many splits");
    entry.splits.resize(splits);
    const auto raw = bytes.take(splits * 8);
    if (!raw.empty()) std::memcpy(entry.splits.data(), raw.data(), raw.size());
    const auto payload = bytes.take(bytes.number());
    entry.payload.assign(payload.begin(), payload.end());
  }
  if (entry.type == RecordType::kOperation) {
    describe(entry, bytes, (fields & kDescribed) != 0);
    if (!has_rows) entry.rows = entry.descriptor->shape.rows();
    // What is said to have come along is looked for, also where it is nothing.
    const bool is_eager = (entry.flags & kEager) != 0;
    const bool may = entry.payload.empty() || (is_eager && may_carry_data(*entry.descriptor));
    if (!may || (is_eager && !has_data_of(entry, item.end - item.begin))) {
      refuse("data of '" + entry.descriptor->name + "'");
    }
    check_rows(entry);
  }
  return item;
}

TreeItem TreeReader::read_end(ByteReader& bytes, TreeItem::Kind kind) const {
  TreeItem item{.kind = kind};
  const std::uint64_t member = bytes.number();
  // Whoever ends a tree may stand anywhere in it; `members_` is how many there are.
  if (member >= static_cast<std::uint64_t>(members_)) refuse("the end by a member that is none");
  const std::uint64_t removes = bytes.number();
  const std::uint64_t first_left = bytes.number();
  if (removes > 1 || first_left > INT32_MAX) refuse("an end of no kind");
  const auto why = bytes.take(bytes.number());
  item.why = std::make_shared<const TreeEnd>(
      TreeEnd{.member = static_cast<int>(member),
              .removes = removes == 1,
              .first_left = static_cast<Rank>(first_left),
              .why = std::string(reinterpret_cast<const char*>(why.data()), why.size())});
  return item;
}

void TreeReader::describe(Entry& entry, ByteReader& bytes, bool has_descriptor) {
  if (has_descriptor) {
    auto descriptor = std::make_shared<const Descriptor>(decode_descriptor(bytes.take(bytes.number())));
    if (descriptor->signature() != entry.signature) refuse("'" + descriptor->name + "' has another signature");
    // Both ends describe what they do not know, and nothing else.
    if (described_.use(0, entry.signature)) refuse("'" + descriptor->name + "' is described again");
    described_.describe(0, entry.signature, std::move(descriptor));
  } else if (!described_.use(0, entry.signature)) {
    refuse("an operation that it never described, or not lately");
  }
  entry.descriptor = described_.find(entry.signature);
  entry.name_hash = entry.descriptor->name_hash();
}

}  // namespace ringcore::engine
