// A switch that adds, packet by packet: what each action means, and what the switch makes of those that do not fit.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "aggregation/switch.hpp"
#include "aggregation/tensor.hpp"
#include "aggregation/wire.hpp"
#include "aggregation/worker.hpp"
#include "switch_network.hpp"

using namespace ringcore;
using namespace ringcore::aggregation;
using testing::PacketNetwork;

namespace {

constexpr std::uint64_t kSession = 5;

Key counting_key() {
  Key key;
  for (std::size_t i = 0; i < Key::kBytes; ++i) key.bytes[i] = static_cast<std::byte>(i);
  return key;
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

struct Seen {
  Header header;
  std::vector<std::byte> payload;
  int to = 0;

  std::vector<float> values() const {
    std::vector<float> values(payload.size() / sizeof(float));
    if (!payload.empty()) std::memcpy(values.data(), payload.data(), payload.size());
    return values;
  }
};

bool is_answer(const Seen& seen, Answer answer) {
  return seen.header.action == Action::kAck && seen.header.answer() == answer;
}

// A switch, and members that say what the test lets them say.
struct Bench {
  SwitchConfig config{.key = counting_key(), .seed = 40};
  std::unique_ptr<Switch> owned = std::make_unique<Switch>(config);
  Key key = key_of_session(counting_key(), kSession);
  std::uint32_t generation = 0;
  Nanoseconds now = 0;

  std::vector<Seen> say(int member, Header header, std::span<const std::byte> payload = {}, int from = -1) {
    header.member = static_cast<MemberId>(member);
    header.session = kSession;
    Outbox packet;
    packet.send(header, payload, key, {});
    Outbox out;
    const Address address = PacketNetwork::address_of(from < 0 ? member : from);
    owned->receive(packet.bytes(packet.items().front()), address, now, out);
    std::vector<Seen> seen;
    for (const auto& item : out.items()) {
      const auto answer = parse(out.bytes(item));
      REQUIRE(answer);
      CHECK(is_authentic(*answer, key));
      CHECK(answer->header.has(flags::kFromSwitch));
      Seen& one = seen.emplace_back(Seen{answer->header, {answer->payload.begin(), answer->payload.end()}});
      std::memcpy(&one.to, item.to.bytes.data(), sizeof(one.to));
    }
    return seen;
  }
  std::vector<Seen> join(int member, std::uint32_t ranks, std::uint32_t number = 1, int from = -1,
                         std::uint32_t window = 4, Segment base = 0) {
    const JoinRequest request{
        .ranks = ranks, .window = window, .number = number, .base = base, .has = std::vector<bool>(window)};
    // The first one is told the generation, and counts for nothing.
    const std::vector<Seen> told = say(member, {.action = Action::kJoin}, request.encode(), from);
    if (told.size() != 1 || !is_answer(told[0], Answer::kWaits)) return told;
    const std::uint32_t current = told[0].header.generation;
    std::vector<Seen> seen = say(member, {.action = Action::kJoin, .generation = current}, request.encode(), from);
    for (const Seen& one : seen) {
      if (one.header.action == Action::kAck && one.header.answer() == Answer::kReady)
        generation = one.header.generation;
    }
    return seen;
  }
  std::vector<Seen> give(int member, Segment segment, const std::vector<float>& values, Sum sum = Sum::kFloat32) {
    return say(member, {.sum = sum, .generation = generation, .value = 1, .segment = segment}, bytes_of(values));
  }
  std::vector<Seen> act(int member, Action action, Segment segment = 0, std::uint32_t value = 0) {
    return say(member, {.action = action, .generation = generation, .value = value, .segment = segment});
  }
};

}  // namespace

TEST_CASE("switch: the tag is that of the paper's example") {
  std::array<std::byte, 15> message;
  for (std::size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i);
  CHECK(mac(counting_key(), message) == 0xa129ca6149be45e5ULL);
}

TEST_CASE("switch: a packet is what was sent, or none") {
  const Header header{.action = Action::kData,
                      .sum = Sum::kInt32,
                      .flags = flags::kResult | flags::kFromSwitch,
                      .member = 3,
                      .generation = 7,
                      .value = 9,
                      .session = ~std::uint64_t{0},
                      .segment = std::uint64_t{1} << 40};
  Outbox out;
  out.send(header, bytes_of({1, 2, 3}), counting_key(), {});
  const auto sent = out.bytes(out.items().front());
  std::vector<std::byte> bytes(sent.begin(), sent.end());
  const auto packet = parse(bytes);
  REQUIRE(packet);
  CHECK(is_authentic(*packet, counting_key()));
  CHECK(packet->header.sum == Sum::kInt32);
  CHECK(packet->header.flags == header.flags);
  CHECK(packet->header.member == 3);
  CHECK(packet->header.generation == 7);
  CHECK(packet->header.value == 9);
  CHECK(packet->header.session == header.session);
  CHECK(packet->header.segment == header.segment);
  CHECK(packet->payload.size() == 12);
  CHECK_FALSE(is_authentic(*packet, Key{}));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x10};
    const auto changed = parse(bytes);
    CHECK_FALSE((changed && is_authentic(*changed, counting_key())));
    bytes[i] ^= std::byte{0x10};
  }
  CHECK_FALSE(parse(std::span(bytes).first(kHeaderBytes + kTagBytes - 1)));
  CHECK_FALSE(parse(std::vector<std::byte>(kMostPacket + 1)));
  CHECK_FALSE(parse(std::vector<std::byte>(kMostPacket)));
}

TEST_CASE("switch: it adds what each member has sent once, and tells all") {
  Bench bench;
  CHECK(is_answer(bench.join(0, 2).back(), Answer::kWaits));
  const auto ready = bench.join(1, 2);
  REQUIRE(ready.size() == 2);
  CHECK(is_answer(ready[0], Answer::kReady));
  CHECK(bench.give(0, 0, {1, 2}).empty());
  CHECK(bench.give(0, 0, {1, 2}).empty());
  const auto sums = bench.give(1, 0, {10, 20});
  REQUIRE(sums.size() == 2);
  for (const Seen& sum : sums) {
    CHECK(sum.values() == std::vector<float>{11, 22});
    CHECK(sum.header.value == 2);
    CHECK(sum.header.has(flags::kResult));
  }
  CHECK(sums[0].to != sums[1].to);
  // Whoever has not got it asks, or sends again: both get it alone.
  for (const auto& again : {bench.give(0, 0, {1, 2}), bench.act(0, Action::kHelp, 0)}) {
    REQUIRE(again.size() == 1);
    CHECK(again[0].values() == std::vector<float>{11, 22});
    CHECK(again[0].to == 0);
  }
}

TEST_CASE("switch: what lies behind shows what was lost, without any time") {
  Bench bench;
  bench.join(0, 2, 1, -1, 16);
  bench.join(1, 2, 1, -1, 16);
  bench.give(0, 0, {1});
  std::vector<Seen> last;
  for (Segment segment = 1; segment <= 8; ++segment) {
    bench.give(0, segment, {1});
    last = bench.give(1, segment, {1});
  }
  REQUIRE(last.size() == 3);
  CHECK(last[2].header.action == Action::kHelp);
  CHECK(last[2].header.segment == 0);
  CHECK(last[2].to == 1);
  // Who asks for what others have not sent is told who they are.
  const auto told = bench.act(0, Action::kHelp, 0);
  CHECK(is_answer(told.back(), Answer::kHave));
  REQUIRE(told.back().payload.size() == 4);
  CHECK(told.back().payload[0] == std::byte{1});
}

TEST_CASE("switch: who leaves lowers the threshold") {
  Bench bench;
  for (int member = 0; member < 3; ++member) bench.join(member, 3);
  bench.give(0, 0, {1});
  bench.give(1, 0, {2});
  const auto told = bench.act(2, Action::kLeave);
  REQUIRE(told.size() == 3);
  CHECK(is_answer(told[0], Answer::kDone));
  CHECK(told[1].values() == std::vector<float>{3});
  CHECK(told[1].header.value == 2);
  CHECK(is_answer(bench.give(2, 1, {1}).front(), Answer::kUnknown));
  bench.act(0, Action::kLeave);
  bench.act(1, Action::kLeave);
  CHECK(bench.owned->sessions() == 0);
}

TEST_CASE("switch: SetH and FBcast end a segment without all of its contributions, and say of how many it is") {
  Bench bench;
  for (int member = 0; member < 3; ++member) bench.join(member, 3);
  bench.give(0, 0, {1});
  bench.give(2, 0, {4});
  const auto forced = bench.act(0, Action::kFBcast, 0);
  REQUIRE(forced.size() == 4);
  CHECK(forced[0].values() == std::vector<float>{5});
  CHECK(forced[0].header.value == 2);
  // The straggler's contribution comes too late, and it is told so by the sum.
  const auto late = bench.give(1, 0, {9});
  REQUIRE(late.size() == 1);
  CHECK(late[0].values() == std::vector<float>{5});
  CHECK(is_answer(bench.act(0, Action::kSetH, 0, 4).front(), Answer::kMismatch));
  CHECK(is_answer(bench.act(0, Action::kSetH, 0, 1).front(), Answer::kDone));
  const auto single = bench.give(1, 1, {7});
  REQUIRE(single.size() == 3);
  CHECK(single[0].header.value == 1);
}

TEST_CASE("switch: Halt suspends all, Reset lets them begin again") {
  Bench bench;
  bench.join(0, 2);
  bench.join(1, 2);
  bench.give(0, 0, {1});
  const auto halted = bench.act(1, Action::kHalt);
  REQUIRE(halted.size() == 2);
  CHECK(halted[0].header.action == Action::kHalt);
  CHECK(halted[0].header.value == 1);
  CHECK(bench.give(1, 0, {1}).front().header.action == Action::kHalt);
  const auto cleared = bench.act(0, Action::kReset);
  REQUIRE(cleared.size() == 2);
  CHECK(is_answer(cleared[0], Answer::kUnknown));
  const std::uint32_t before = bench.generation;
  bench.join(0, 2, 2);
  bench.join(1, 2, 2);
  CHECK(bench.generation != before);
  bench.give(1, 0, {2});
  CHECK(bench.give(0, 0, {3}).front().values() == std::vector<float>{5});
}

TEST_CASE("switch: what was sent in an earlier generation counts no more") {
  Bench bench;
  bench.join(0, 2);
  bench.join(1, 2);
  const std::uint32_t before = bench.generation;
  bench.act(0, Action::kReset);
  bench.join(0, 2, 2);
  bench.join(1, 2, 2);
  const auto late = [&](Action action) {
    return bench.say(0, {.action = action, .generation = before, .value = 1}, bytes_of({100}));
  };
  for (const Action action : {Action::kData, Action::kLeave, Action::kFBcast, Action::kHalt}) {
    const auto told = late(action);
    REQUIRE(told.size() == 1);
    CHECK(is_answer(told[0], Answer::kUnknown));
    CHECK(told[0].header.segment == before);
  }
  bench.give(1, 0, {2});
  CHECK(bench.give(0, 0, {3}).front().values() == std::vector<float>{5});
}

TEST_CASE("switch: a sum that nobody has asked for is not taken") {
  Bench bench;
  bench.join(0, 2);
  bench.join(1, 2);
  const auto bring = [&](float value) {
    const Header header{.flags = flags::kResult, .generation = bench.generation, .value = 2};
    return bench.say(0, header, bytes_of({value}));
  };
  bench.give(0, 0, {1});
  CHECK(bring(100).empty());
  CHECK(bench.give(1, 0, {2}).front().values() == std::vector<float>{3});
  CHECK(bring(100).empty());
  CHECK(bench.act(1, Action::kHelp, 0).front().values() == std::vector<float>{3});
}

TEST_CASE("switch: workers that are further apart than those of one job ever are end the session") {
  Bench bench;
  bench.join(0, 2);
  const auto told = bench.join(1, 2, 1, -1, 4, 9);
  REQUIRE(told.size() == 2);
  for (const Seen& seen : told) CHECK(is_answer(seen, Answer::kMismatch));
  CHECK(bench.owned->sessions() == 0);
}

namespace {

// All that a worker has to give, and what it has got.
struct Given final : Source {
  std::vector<std::byte> own = bytes_of({1, 2});
  std::vector<Segment> taken;

  bool ready(Segment) override { return true; }
  Contribution contribution(Segment) override { return {Sum::kFloat32, 1, own}; }
  bool take(Segment segment, const Contribution&) override {
    taken.push_back(segment);
    return true;
  }
};

// A worker, and a switch that says what the test lets it say.
struct Opposite {
  Given source;
  Key key = key_of_session(counting_key(), kSession);
  Worker worker{WorkerConfig{.session = kSession, .key = key, .member = 1, .ranks = 2, .window = 4}, source};
  Nanoseconds now = 0;

  std::vector<Header> sends(Nanoseconds after = 0) {
    now += after;
    Outbox out;
    worker.send(out, now, 16);
    std::vector<Header> sent;
    for (const auto& item : out.items()) sent.push_back(parse(out.bytes(item))->header);
    return sent;
  }
  void say(Header header, std::span<const std::byte> payload = {}) {
    header.flags |= flags::kFromSwitch;
    header.member = 1;
    header.session = kSession;
    Outbox out;
    out.send(header, payload, key, {});
    worker.receive(*parse(out.bytes(out.items().front())), now);
  }
  void answer(Answer answer, std::uint32_t generation, Segment segment) {
    say({.action = Action::kAck,
         .generation = generation,
         .value = static_cast<std::uint32_t>(answer),
         .segment = segment});
  }
  // Through two Joins into a generation.
  void join(std::uint32_t generation) {
    worker.join(now);
    sends();
    answer(Answer::kWaits, generation, 1);
    sends();
    answer(Answer::kReady, generation, 2);
  }
};

}  // namespace

TEST_CASE("switch: a worker takes the sum of all, and none of fewer") {
  Opposite bench;
  bench.join(7);
  CHECK(bench.sends().size() == 4);
  bench.say({.action = Action::kData, .flags = flags::kResult, .generation = 7, .value = 2}, bench.source.own);
  CHECK(bench.source.taken == std::vector<Segment>{0});
  bench.say({.action = Action::kData, .flags = flags::kResult, .generation = 6, .value = 2, .segment = 1},
            bench.source.own);
  CHECK(bench.source.taken.size() == 1);
  CHECK_FALSE(bench.worker.failure());
  bench.say({.action = Action::kData, .flags = flags::kResult, .generation = 7, .value = 1, .segment = 1},
            bench.source.own);
  REQUIRE(bench.worker.failure());
  CHECK(bench.worker.failure()->kind == Worker::Failure::Kind::kIncomplete);
  CHECK(bench.worker.failure()->segment == 1);
  CHECK(bench.source.taken.size() == 1);
}

TEST_CASE("switch: a worker that is halted sends nothing more") {
  Opposite bench;
  bench.join(7);
  bench.say({.action = Action::kHalt, .generation = 7, .value = 3});
  CHECK(bench.worker.halted_by() == MemberId{3});
  CHECK(bench.sends().empty());
}

TEST_CASE("switch: a worker joins anew where its switch has lost its memory, and at no other word of it") {
  Opposite bench;
  bench.join(7);
  CHECK(bench.sends().size() == 4);
  bench.answer(Answer::kUnknown, 9, 6);  // of a generation that is long over
  CHECK(bench.sends(1).empty());
  bench.answer(Answer::kUnknown, 9, 7);
  auto sent = bench.sends(1);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].action == Action::kJoin);
  bench.answer(Answer::kWaits, 9, 3);
  CHECK(bench.sends().front().generation == 9);
  // What was sent before the last Join says nothing of it.
  bench.answer(Answer::kReady, 9, 3);
  CHECK(bench.sends(1).empty());
  bench.answer(Answer::kReady, 9, 4);
  // All that has no sum yet is sent again, at once.
  sent = bench.sends(1);
  CHECK(sent.size() == 4);
  CHECK(std::ranges::all_of(sent, [](const Header& each) { return each.action == Action::kData; }));
}

TEST_CASE("switch: contributions that do not fit are refused, and change no sum") {
  Bench bench;
  bench.join(0, 2);
  bench.join(1, 2);
  bench.give(0, 0, {1, 1});
  CHECK(is_answer(bench.give(1, 0, {1}).front(), Answer::kMismatch));
  CHECK(is_answer(bench.give(1, 0, {1, 1, 1}).front(), Answer::kMismatch));
  CHECK(is_answer(bench.give(1, 0, {1, 1}, Sum::kInt32).front(), Answer::kMismatch));
  CHECK(is_answer(bench.give(1, 0, {}).front(), Answer::kMismatch));
  // Of another window than the one that all are in.
  CHECK(is_answer(bench.give(1, 8, {1, 1}).front(), Answer::kMismatch));
  CHECK(bench.give(1, 0, {1, 1}).front().values() == std::vector<float>{2, 2});
  CHECK(is_answer(bench.join(2, 2).front(), Answer::kFull));
  CHECK(is_answer(bench.join(1, 3, 9).front(), Answer::kMismatch));
}

TEST_CASE("switch: a Join that is repeated by somebody else does not lead sums away") {
  Bench bench;
  bench.join(0, 2, 3);
  bench.join(1, 2, 3);
  for (const std::uint32_t number : {2U, 3U}) CHECK(bench.join(1, 2, number, 66).front().to == 1);
  bench.give(0, 0, {1});
  const auto sums = bench.give(1, 0, {1});
  // Nor does one that was sent to a switch that is no more.
  const std::uint32_t former = bench.generation;
  bench.owned = std::make_unique<Switch>(SwitchConfig{.key = counting_key(), .seed = 90});
  const JoinRequest old{.ranks = 2, .window = 4, .number = 9, .has = std::vector<bool>(4)};
  bench.say(0, {.action = Action::kJoin, .generation = former}, old.encode());
  CHECK(is_answer(bench.join(1, 2).back(), Answer::kWaits));
  CHECK(std::ranges::none_of(sums, [](const Seen& seen) { return seen.to == 66; }));
}

TEST_CASE("switch: what is not ours, and what has another key, is counted and not answered") {
  Bench bench;
  bench.join(0, 2);
  Outbox out;
  bench.owned->receive(std::vector<std::byte>(100), {}, 0, out);
  bench.key = key_of_session(Key{}, kSession);
  CHECK(bench.give(0, 0, {1}).empty());
  CHECK(bench.join(1, 2).empty());
  CHECK(out.items().empty());
  CHECK(bench.owned->counts().foreign == 1);
  CHECK(bench.owned->counts().forged == 2);
}

TEST_CASE("switch: its memory is bounded, whatever those with the key do") {
  Bench bench;
  bench.join(0, 2, 1, -1, kMostWindow);
  bench.join(1, 2, 1, -1, kMostWindow);
  std::mt19937_64 draw(3);
  const std::vector<float> whole(kElements, 1.0F);
  for (int i = 0; i < 20'000; ++i) {
    const Segment segment = draw() % 2 == 0 ? draw() : draw() % 4096;
    const auto action = static_cast<Action>(draw() % kActions);
    if (action == Action::kData) {
      bench.give(static_cast<int>(draw() % 3), segment, whole);
    } else if (action == Action::kHelp || action == Action::kFBcast || action == Action::kSetH) {
      bench.act(static_cast<int>(draw() % 3), action, segment, static_cast<std::uint32_t>(draw()));
    }
  }
  CHECK(bench.owned->held_bytes() <= 2 * kMostWindow * kMostPayload);
  CHECK(bench.owned->held_bytes() > 0);
  for (std::uint64_t session = 100; session < 300; ++session) {
    const Key key = key_of_session(counting_key(), session);
    const JoinRequest request{.ranks = 2, .window = 1, .number = 1, .has = {false}};
    Outbox packet;
    packet.send({.action = Action::kJoin, .session = session}, request.encode(), key, {});
    Outbox out;
    bench.owned->receive(packet.bytes(packet.items().front()), {}, 1, out);
  }
  CHECK(bench.owned->sessions() == bench.config.most_sessions);
  CHECK(bench.join(0, 2, 50, -1, kMostWindow).size() == 1);  // of the one that runs, which makes way for none of these
  Outbox out;
  bench.owned->check_timers(bench.config.idle + 2, out);
  CHECK(bench.owned->sessions() == 0);
}

namespace {

// The sum of these by the quantised scheme, added in an order.
std::vector<float> sum_of_integers(std::vector<std::vector<float>> ranks, std::span<const std::size_t> order) {
  const auto count = static_cast<std::uint32_t>(ranks.size());
  std::vector<Tensor> tensors;
  for (auto& values : ranks) tensors.emplace_back(std::span(values), 0, true, count);
  for (Segment segment = 0; segment < tensors.front().end(); ++segment) {
    std::vector<std::int32_t> sum;
    Sum kind{};
    for (const std::size_t rank : order) {
      REQUIRE(tensors[rank].ready(segment));
      const auto own = tensors[rank].contribution(segment);
      std::vector<std::int32_t> integers(own.payload.size() / sizeof(std::int32_t));
      std::memcpy(integers.data(), own.payload.data(), own.payload.size());
      kind = own.sum;
      if (sum.empty()) {
        sum = integers;
        continue;
      }
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const std::int64_t total = std::int64_t{sum[i]} + integers[i];
        if (kind == Sum::kInt32) CHECK(total == static_cast<std::int32_t>(total));
        sum[i] = kind == Sum::kMaxInt32 ? std::max(sum[i], integers[i]) : static_cast<std::int32_t>(total);
      }
    }
    for (Tensor& tensor : tensors) REQUIRE(tensor.take(segment, {kind, count, std::as_bytes(std::span(sum))}));
  }
  CHECK(tensors.front().done());
  return ranks.front();
}

}  // namespace

TEST_CASE("switch: sums of integers have the same bits in every order, and are near those of floats") {
  std::mt19937_64 draw(11);
  // Two groups of exponents and a bit, so that all places of segments occur.
  const std::size_t elements = kElements * kElements * 2 + 700;
  std::vector<std::vector<float>> ranks(3, std::vector<float>(elements));
  std::vector<double> exact(elements);
  for (auto& values : ranks) {
    for (std::size_t i = 0; i < elements; ++i) {
      values[i] = std::ldexp(static_cast<float>(draw() % 2001) - 1000.0F, static_cast<int>(i / kElements % 200) - 100);
      exact[i] += values[i];
    }
  }
  ranks[1][5] = std::numeric_limits<float>::infinity();
  for (auto& values : ranks) std::fill_n(values.begin() + kElements, kElements, 0.0F);
  const std::vector<float> sum = sum_of_integers(ranks, std::vector<std::size_t>{0, 1, 2});
  for (const auto& order : {std::vector<std::size_t>{2, 1, 0}, std::vector<std::size_t>{1, 0, 2}}) {
    const std::vector<float> other = sum_of_integers(ranks, order);
    CHECK(std::memcmp(sum.data(), other.data(), elements * sizeof(float)) == 0);
  }
  double worst = 0;
  for (std::size_t i = 2 * kElements; i < elements; ++i) {
    const double largest = std::ldexp(1000.0, static_cast<int>(i / kElements % 200) - 100);
    worst = std::max(worst, std::abs(sum[i] - exact[i]) / largest);
  }
  CHECK(worst < 1e-6);
  CHECK(std::isnan(sum[0]));  // of a block with a value that is not finite nothing is known
  CHECK(sum[kElements] == 0);
}
