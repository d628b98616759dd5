// Packets at a switch and at a worker: of strangers, and of those that have the key and say anything.
#include <algorithm>

#include "aggregation/switch.hpp"
#include "aggregation/tensor.hpp"
#include "aggregation/worker.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

using namespace aggregation;

constexpr std::uint64_t kSession = 1;
constexpr std::uint32_t kWindow = 4;

struct Values final : Source {
  std::array<float, 3 * kElements> data{};
  Tensor tensor{data, 0, false, 2};

  bool ready(Segment segment) override { return tensor.ready(segment); }
  Contribution contribution(Segment segment) override {
    require(tensor.ready(segment), "only what is ready is sent");
    return tensor.contribution(segment);
  }
  bool take(Segment segment, const Contribution& sum) override {
    require(tensor.ready(segment), "only the sums of what is ready are taken");
    return tensor.take(segment, sum);
  }
};

Header take_header(Input& bytes) {
  return {.action = static_cast<Action>(bytes.below(kActions)),
          .sum = static_cast<Sum>(bytes.below(kSums)),
          .flags = static_cast<std::uint8_t>(bytes.below(8)),
          .member = bytes.take<std::uint8_t>() < 250 ? static_cast<MemberId>(bytes.below(3)) : kEverybody,
          .generation = static_cast<std::uint32_t>(bytes.below(4)),
          .value = static_cast<std::uint32_t>(bytes.below(kAnswers)),
          .session = kSession,
          .segment = bytes.flip() ? bytes.below(16) : bytes.take<std::uint64_t>()};
}

}  // namespace

void aggregation(Bytes input) {
  Input bytes(input);
  const Key key;
  const Key of_session = key_of_session(key, kSession);
  Switch added({.key = key, .most_sessions = 2});
  Values values;
  Worker worker({.session = kSession, .key = of_session, .member = 1, .ranks = 2, .window = kWindow}, values);
  worker.join(0);
  Nanoseconds now = 0;
  Outbox out;
  while (!bytes.empty()) {
    now += bytes.take<std::uint8_t>() * kMillisecond;
    out.clear();
    if (bytes.below(4) == 0) {
      added.receive(bytes.piece(bytes.take<std::uint8_t>()), {}, now, out);
      worker.send(out, now, 8);
      added.check_timers(now, out);
      continue;
    }
    const Header header = take_header(bytes);
    std::vector<std::byte> payload(bytes.below(5) == 0 ? kMostPayload : 4 * bytes.below(12));
    const Bytes given = bytes.piece(std::min<std::size_t>(payload.size(), bytes.take<std::uint8_t>()));
    std::ranges::copy(given, payload.begin());
    if (header.action == Action::kJoin && bytes.flip()) {
      payload = JoinRequest{.ranks = 2,
                            .window = kWindow,
                            .number = static_cast<std::uint32_t>(bytes.below(8)),
                            .base = bytes.below(12),
                            .has = {bytes.flip(), bytes.flip(), bytes.flip(), bytes.flip()}}
                    .encode();
    }
    Outbox packet;
    packet.send(header, payload, of_session, {});
    const Bytes sealed = packet.bytes(packet.items().front());
    const auto parsed = parse(sealed);
    if (parsed && is_authentic(*parsed, of_session)) worker.receive(*parsed, now);
    added.receive(sealed, {}, now, out);
    require(added.sessions() <= 2, "there are no more sessions than allowed");
    require(added.held_bytes() <= 2 * (2 * std::size_t{kMostWindow}) * 2 * kMostPayload, "memory is bounded");
  }
}

}  // namespace ringcore::fuzz
