// What a peer sends is not believed: records and descriptors that are cut, changed or made up.
#include "engine/record.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "engine/negotiation.hpp"

using namespace ringcore;
using namespace ringcore::engine;

namespace {

Descriptor group_of(Collective collective, std::size_t parts) {
  std::vector<std::shared_ptr<Operation>> operations;
  for (std::size_t i = 0; i < parts; ++i) {
    auto operation = std::make_shared<Operation>();
    operation->descriptor.collective = collective;
    operation->descriptor.dtype = i % 2 == 0 ? DType::kFloat32 : DType::kInt64;
    operation->descriptor.shape = Shape::of(std::vector<std::uint64_t>{i + 1, 1000 * i + 7});
    operations.push_back(std::move(operation));
  }
  const Descriptor group = make_group("group", operations)->descriptor;
  return decode_descriptor(encode(group));
}

Entry entry_of(const std::shared_ptr<const Descriptor>& descriptor, std::vector<std::uint64_t> rows) {
  Entry entry{.type = RecordType::kOperation};
  entry.signature = descriptor->signature();
  entry.name_hash = descriptor->name_hash();
  entry.descriptor = descriptor;
  entry.rows = rows.front();
  if (descriptor->is_group()) entry.splits = std::move(rows);
  return entry;
}

// What two members decide who announce the same with these rows.
Decision decided(const std::shared_ptr<const Descriptor>& descriptor, const std::vector<std::uint64_t>& rows) {
  Negotiation negotiation({0, 1}, 0);
  negotiation.append(0, entry_of(descriptor, rows));
  negotiation.append(1, entry_of(descriptor, rows));
  std::vector<Decision> decisions;
  negotiation.decide(decisions);
  REQUIRE(decisions.size() == 1);
  return std::move(decisions[0]);
}

}  // namespace

TEST_CASE("a descriptor comes back as it was sent, also of a group") {
  const Descriptor group = group_of(Collective::kAllreduce, 300);
  REQUIRE(group.parts.size() == 300);
  CHECK(group.parts[299]->name == "group[299]");
  CHECK(group.parts[299]->dtype == DType::kInt64);
  CHECK(group.parts[299]->shape.to_string() == "[300, 299007]");
  CHECK(decode_descriptor(encode(group)).signature() == group.signature());
  CHECK(group_of(Collective::kAllreduce, 299).signature() != group.signature());
  // Some thousands of tensors fit into one record.
  CHECK(encode(group_of(Collective::kAllreduce, 5000)).size() < kMaxRecordBytes);
}

TEST_CASE("a descriptor that was cut or changed is refused or harmless") {
  const std::vector<std::byte> sent = encode(group_of(Collective::kAllgather, 5));
  for (std::size_t length = 0; length < sent.size(); ++length) {
    CHECK_THROWS_AS(decode_descriptor(std::span(sent).first(length)), Error);
  }
  std::mt19937 choose(1);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> changed = sent;
    for (int i = 0; i < 3; ++i) changed[choose() % changed.size()] = static_cast<std::byte>(choose());
    try {
      const Descriptor descriptor = decode_descriptor(changed);
      REQUIRE(descriptor.name.size() <= changed.size());
      REQUIRE(descriptor.parts.size() <= changed.size());
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::kProtocol);
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("a record that was changed is refused, or lies within its bytes") {
  const std::uint64_t splits[] = {1, 2, 3};
  const std::vector<std::byte> payload(100);
  const RecordHeader header{.type = RecordType::kOperation, .flags = kHasDescriptor | kHasSplits};
  const std::vector<std::byte> sent =
      build_record(header, encode(group_of(Collective::kAllreduce, 3)), splits, payload);
  std::mt19937 choose(2);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> changed = sent;
    for (int i = 0; i < 2; ++i) changed[choose() % sizeof(RecordHeader)] = static_cast<std::byte>(choose());
    try {
      const auto record = parse_record(changed);
      if (!record) continue;  // longer than what has come
      const std::byte* end = changed.data() + changed.size();
      REQUIRE(record->descriptor.data() + record->descriptor.size() <= end);
      REQUIRE(record->splits.data() + record->splits.size() <= end);
      REQUIRE(record->payload.data() + record->payload.size() <= end);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::kProtocol);
    }
  }
}

TEST_CASE("rows that no memory holds are a mismatch, not a size that wraps") {
  Descriptor gather;
  gather.name = "g";
  gather.collective = Collective::kAllgather;
  gather.dtype = DType::kFloat32;
  gather.shape = Shape::of(std::vector<std::uint64_t>{1, 1});
  const auto single = std::make_shared<const Descriptor>(gather);
  CHECK(decided(single, {1000}).kind == Decision::Kind::kRelease);
  for (const std::uint64_t rows : {std::uint64_t{1} << 61, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    const Decision decision = decided(single, {rows});
    REQUIRE(decision.kind == Decision::Kind::kFail);
    CHECK(std::string(decision.error->what()).find("no memory holds") != std::string::npos);
  }
  const auto group = std::make_shared<const Descriptor>(group_of(Collective::kAllgather, 2));
  CHECK(decided(group, {5, 7}).kind == Decision::Kind::kRelease);
  CHECK(decided(group, {5, std::uint64_t{1} << 62}).kind == Decision::Kind::kFail);
}
