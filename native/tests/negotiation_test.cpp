// The decisions that follow from logs, without engines around them.
#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "engine/negotiation.hpp"
#include "entries.hpp"

using namespace ringcore;
using namespace ringcore::engine;
using testing::entry_for;
using testing::tensor;

TEST_CASE("nobody is missing whose announcement is decided while this rank's own is not") {
  Negotiation negotiation({0, 1, 2}, 1);
  const auto x = tensor("x");
  negotiation.append(0, entry_for(x));
  negotiation.append(1, Entry{.type = RecordType::kNoop});
  negotiation.append(2, entry_for(x));
  std::vector<Decision> decisions;
  negotiation.decide(decisions);
  REQUIRE(decisions.empty());
  negotiation.append(1, entry_for(x));
  CHECK(negotiation.missing(x->name_hash()).empty());
  // The others leave: what they have announced is decided all the same.
  negotiation.leave(0);
  negotiation.leave(2);
  negotiation.decide(decisions);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].kind == Decision::Kind::kRelease);
}

TEST_CASE("a join that nobody will end any more decides nothing, whatever is announced behind it") {
  Negotiation negotiation({0, 1}, 0);
  negotiation.append(0, Entry{.type = RecordType::kJoin});
  negotiation.append(1, Entry{.type = RecordType::kNoop});
  negotiation.append(0, entry_for(tensor("x")));
  std::vector<Decision> decisions;
  negotiation.decide(decisions);
  negotiation.leave(1);
  negotiation.decide(decisions);  // did not return
  CHECK(decisions.empty());
}

TEST_CASE("what a join completes stays in no bucket, though nobody has anything to say any more") {
  Negotiation negotiation({0, 1}, 0);
  std::vector<Decision> decisions;
  negotiation.append(0, entry_for(tensor("x")));
  negotiation.append(0, Entry{.type = RecordType::kNoop, .flags = kFlush});  // of other operations
  for (int round = 0; round < 2; ++round) negotiation.append(1, Entry{.type = RecordType::kNoop});
  negotiation.decide(decisions);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].kind == Decision::Kind::kFlush);
  decisions.clear();
  negotiation.append(0, Entry{.type = RecordType::kNoop});
  negotiation.append(1, Entry{.type = RecordType::kJoin});
  negotiation.decide(decisions);
  REQUIRE(decisions.size() == 2);
  CHECK(decisions[0].kind == Decision::Kind::kRelease);
  CHECK(decisions[1].kind == Decision::Kind::kFlush);
}

TEST_CASE("a refusal is this rank's part of one use of the name, and fails that use and no other") {
  const auto x = tensor("x");
  Entry refusal{.type = RecordType::kRefused, .name_hash = x->name_hash()};
  const std::string why = "rank 1 refused 'x'";
  const auto text = std::as_bytes(std::span(why));
  refusal.payload.assign(text.begin(), text.end());
  for (const int self : {0, 1, 2}) {
    Negotiation negotiation({0, 1, 2}, self);
    for (const int member : {0, 2}) negotiation.append(member, entry_for(x));
    negotiation.append(1, refusal);
    for (const int member : {0, 1, 2}) negotiation.append(member, entry_for(x));
    std::vector<Decision> decisions;
    negotiation.decide(decisions);
    const bool refused = self == 1;  // who is told in the call itself
    REQUIRE(decisions.size() == (refused ? 1 : 2));
    CHECK(decisions.back().kind == Decision::Kind::kRelease);
    CHECK(negotiation.quiet());
    if (refused) continue;
    CHECK(decisions[0].kind == Decision::Kind::kFail);
    CHECK(decisions[0].error->kind() == ErrorKind::kMismatch);
    CHECK(std::string(decisions[0].error->what()) == why);
  }
}

TEST_CASE("what every rank refuses is forgotten") {
  Negotiation negotiation({0, 1}, 0);
  for (const int member : {1, 0}) {
    negotiation.append(member, {.type = RecordType::kRefused, .name_hash = tensor("x")->name_hash()});
  }
  std::vector<Decision> decisions;
  negotiation.decide(decisions);
  CHECK(decisions.empty());
  CHECK(negotiation.quiet());
}

TEST_CASE("what all say alike is no earlier operation of a rank that has announced behind its join") {
  Negotiation negotiation({0, 1}, 0);
  std::vector<Decision> decisions;
  const auto at = [](std::uint64_t position, Entry entry) {
    entry.position = position;
    return entry;
  };
  const auto releases = [&] {
    return std::ranges::count_if(decisions, [](const Decision& each) { return each.kind == Decision::Kind::kRelease; });
  };
  const Entry a = entry_for(tensor("a"));
  const Entry b = entry_for(tensor("b"));
  negotiation.append(0, at(0, {.type = RecordType::kJoin}));
  negotiation.append(1, at(0, {.type = RecordType::kNoop}));
  negotiation.decide(decisions);
  // It does not know yet that it sits out a round, in which the other one joins.
  negotiation.append(0, at(1, a));
  negotiation.append(0, at(2, b));
  negotiation.append(1, at(1, {.type = RecordType::kJoin}));
  negotiation.decide(decisions);
  negotiation.append_alike(at(2, b));
  negotiation.decide(decisions);
  CHECK(releases() == 0);  // 'a', which the other one has not announced
  negotiation.append(1, at(3, a));
  negotiation.decide(decisions);
  CHECK(releases() == 2);
}

TEST_CASE("no log is filled beyond the place that one has come to, whatever a rank says") {
  Negotiation negotiation({0, 1}, 0);
  negotiation.append(1, {.type = RecordType::kNoop, .flags = kFill, .position = 0});
  CHECK(negotiation.fill_until() == 1);
  negotiation.append(1, {.type = RecordType::kNoop, .flags = kFill, .position = std::uint64_t{1} << 40});
  CHECK(negotiation.fill_until() == 2);
}
