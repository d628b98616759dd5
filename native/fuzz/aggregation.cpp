// Switches and workers, what they send each other lost, doubled, late or changed on its way: by strangers, and by those
// who have the key and say anything. Switches lose their memory, too.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "aggregation/switch.hpp"
#include "aggregation/tensor.hpp"
#include "aggregation/worker.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

using namespace aggregation;

constexpr std::uint64_t kSession = 1;
constexpr std::uint32_t kWindow = 4;
constexpr std::uint32_t kRanks = 3;
constexpr std::size_t kMostHeld = 2 * (2 * std::size_t{kMostWindow}) * 2 * kMostPayload;

Address address_of(std::size_t node) { return {.bytes = {static_cast<std::byte>(node)}, .size = 1}; }

// Of a rank its tensor, of which all elements are 1, and its worker.
class Participant final : public Source {
 public:
  Participant(MemberId member, bool integers, const Key& key, std::size_t at)
      : tensor_(data_, 0, integers, kRanks),
        worker_({.session = kSession,
                 .key = key,
                 .member = member,
                 .ranks = kRanks,
                 .window = kWindow,
                 .to = address_of(at)},
                *this) {
    data_.fill(1);
    worker_.join(0);
  }

  Worker& worker() { return worker_; }
  bool is_right() const {
    return !tensor_.done() || std::ranges::all_of(data_, [](float each) { return each == kRanks; });
  }

  bool ready(Segment segment) override { return tensor_.ready(segment); }
  Contribution contribution(Segment segment) override {
    require(tensor_.ready(segment), "only what is ready is sent");
    return tensor_.contribution(segment);
  }
  bool take(Segment segment, const Contribution& sum) override {
    require(tensor_.ready(segment), "only the sums of what is ready are taken");
    return tensor_.take(segment, sum);
  }

 private:
  std::array<float, 8 * kElements> data_{};
  Tensor tensor_;
  Worker worker_;
};

Header some_header(Input& bytes) {
  return {.action = static_cast<Action>(bytes.below(kActions)),
          .sum = static_cast<Sum>(bytes.below(kSums)),
          .flags = static_cast<std::uint8_t>(bytes.below(8)),
          .member = bytes.take<std::uint8_t>() < 250 ? static_cast<MemberId>(bytes.below(3)) : kEverybody,
          .generation = static_cast<std::uint32_t>(bytes.below(4)),
          .value = static_cast<std::uint32_t>(bytes.below(kAnswers)),
          .session = kSession,
          .segment = bytes.flip() ? bytes.below(16) : bytes.take<std::uint64_t>()};
}

void change(Header& header, Input& bytes) {
  const auto number = bytes.take<std::uint8_t>();
  switch (bytes.below(7)) {
    case 0: header.action = static_cast<Action>(number % kActions); break;
    case 1: header.sum = static_cast<Sum>(number % kSums); break;
    case 2: header.flags ^= static_cast<std::uint8_t>(1U << (number % 3)); break;
    case 3: header.member = static_cast<MemberId>(number % 4); break;
    case 4: header.generation += number % 3; break;
    case 5: header.value = number; break;
    default: header.segment += number;
  }
}

// Ranks 0 and 1 are members of a switch that is a member of another one, as rank 2 is; or all are of one.
class Rack {
 public:
  explicit Rack(Input& bytes) : bytes_(bytes), two_levels_(bytes.flip()) {
    const bool integers = bytes.flip();
    for (std::size_t node = 0; node < kSwitches; ++node) start(node);
    for (std::size_t i = 0; i < kRanks; ++i) {
      const std::size_t at = two_levels_ && i < 2 ? 1 : 0;
      ranks_[i] = std::make_unique<Participant>(static_cast<MemberId>(i), integers, of_session_, at);
    }
  }

  void act() {
    switch (bytes_.below(16)) {
      case 0: return strange();
      case 1: return inject();
      case 2: return alter();
      case 3: return pass(bytes_.take<std::uint8_t>() * kMillisecond);
      case 4:
        if (!under_way_.empty()) under_way_.pop_front();
        return;
      case 5:
        if (!under_way_.empty()) under_way_.push_back(under_way_.front());
        return;
      case 6:
        if (!under_way_.empty()) std::swap(under_way_.front(), under_way_.back());
        return;
      case 7:
        if (bytes_.below(4) == 0) start(bytes_.below(kSwitches));
        return;
      case 8: return leave();
      default:
        pass(kMillisecond);
        for (std::size_t left = bytes_.below(16); left > 0 && !under_way_.empty(); --left) deliver();
    }
  }

  void end() {
    for (const auto& rank : ranks_) require(is_altered_ || rank->is_right(), "what is summed is right");
  }

 private:
  static constexpr std::size_t kSwitches = 2;
  struct Sent {
    std::size_t from = 0;
    std::size_t to = 0;
    std::vector<std::byte> bytes;
  };

  // Without memory of what was before.
  void start(std::size_t node) {
    SwitchConfig config{.key = key_, .seed = seed_ += 16, .most_sessions = 2};
    config.members = two_levels_ ? 2 : 0;
    if (two_levels_ && node == 1) {
      config.parent = address_of(0);
      config.own_id = 7;
    }
    switches_[node].emplace(config);
  }

  void post(std::size_t from) {
    for (const Outbox::Item& item : out_.items()) {
      const Bytes sent = out_.bytes(item);
      const auto to = std::to_integer<std::size_t>(item.to.bytes.front());
      if (item.to.size > 0) under_way_.push_back({from, to, {sent.begin(), sent.end()}});
    }
    out_.clear();
  }

  void pass(Nanoseconds duration) {
    now_ += duration;
    for (std::size_t node = 0; node < kSwitches; ++node) {
      switches_[node]->check_timers(now_, out_);
      require(switches_[node]->next_timer() > 0, "there is a next time");
      post(node);
    }
    for (std::size_t i = 0; i < kRanks; ++i) {
      ranks_[i]->worker().send(out_, now_, 8);
      require(ranks_[i]->worker().next_timer() > 0, "there is a next time");
      post(kSwitches + i);
    }
  }

  void deliver() {
    const Sent sent = std::move(under_way_.front());
    under_way_.pop_front();
    give(sent.from, sent.to, sent.bytes);
  }

  void give(std::size_t from, std::size_t to, Bytes sent) {
    if (to < kSwitches) {
      Switch& added = *switches_[to];
      added.receive(sent, address_of(from), now_, out_);
      post(to);
      require(added.sessions() <= 2, "there are no more sessions than allowed");
      require(added.held_bytes() <= kMostHeld, "memory is bounded");
    } else if (to < kSwitches + kRanks) {
      const auto parsed = parse(sent);
      if (parsed && is_authentic(*parsed, of_session_)) ranks_[to - kSwitches]->worker().receive(*parsed, now_);
    }
  }

  std::size_t some_node() { return bytes_.below(kSwitches + kRanks); }

  // Bytes of somebody without the key.
  void strange() {
    const std::size_t to = some_node();
    give(some_node(), to, bytes_.piece(bytes_.take<std::uint8_t>()));
  }

  void leave() {
    if (bytes_.below(4) != 0) return;
    const std::size_t node = some_node();
    is_altered_ = true;  // the others' sums are those of who is left
    if (node < kSwitches) {
      switches_[node]->leave(out_);
    } else if (bytes_.flip()) {
      ranks_[node - kSwitches]->worker().leave(out_);
    } else {
      ranks_[node - kSwitches]->worker().halt(out_);
    }
    post(node);
  }

  // Of somebody who has the key, and has gone mad.
  void inject() {
    is_altered_ = true;
    const Header header = some_header(bytes_);
    std::vector<std::byte> payload(bytes_.below(5) == 0 ? kMostPayload : 4 * bytes_.below(12));
    const Bytes given = bytes_.piece(std::min<std::size_t>(payload.size(), bytes_.take<std::uint8_t>()));
    std::ranges::copy(given, payload.begin());
    if (header.action == Action::kJoin && bytes_.flip()) {
      payload = JoinRequest{.ranks = kRanks,
                            .window = kWindow,
                            .number = static_cast<std::uint32_t>(bytes_.below(8)),
                            .base = bytes_.below(12),
                            .has = {bytes_.flip(), bytes_.flip(), bytes_.flip(), bytes_.flip()}}
                    .encode();
    }
    const std::size_t to = some_node();
    sealed(header, payload, some_node(), to);
  }

  void alter() {
    if (under_way_.empty()) return;
    const Sent sent = std::move(under_way_.front());
    under_way_.pop_front();
    const auto parsed = parse(sent.bytes);
    if (!parsed) return;
    is_altered_ = true;
    Header header = parsed->header;
    change(header, bytes_);
    sealed(header, parsed->payload, sent.from, sent.to);
  }

  void sealed(const Header& header, Bytes payload, std::size_t from, std::size_t to) {
    Outbox packet;
    packet.send(header, payload, of_session_, {});
    give(from, to, packet.bytes(packet.items().front()));
  }

  Input& bytes_;
  const Key key_{};
  const Key of_session_ = key_of_session(key_, kSession);
  bool two_levels_;
  bool is_altered_ = false;
  std::uint32_t seed_ = 0;
  Nanoseconds now_ = 0;
  Outbox out_;
  std::deque<Sent> under_way_;
  std::array<std::optional<Switch>, kSwitches> switches_;
  std::array<std::unique_ptr<Participant>, kRanks> ranks_;
};

}  // namespace

void aggregation(Bytes input) {
  Input bytes(input);
  Rack rack(bytes);
  for (int events = 0; events < 400 && !bytes.empty(); ++events) rack.act();
  rack.end();
}

}  // namespace ringcore::fuzz
