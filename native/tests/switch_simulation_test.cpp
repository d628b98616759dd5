// Switches and their workers over a network that loses, doubles, delays and reorders, in virtual time.
//
// Each seed decides everything: how many workers, under one switch or two levels of them, what they sum, what becomes of
// packets, which switch loses its memory when and for how long, which worker dies. A failing seed replays exactly:
//
//   RINGCORE_SWITCH_SEED=123 ringcore_tests -tc="switch schedules*"
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "aggregation/switch.hpp"
#include "aggregation/tensor.hpp"
#include "aggregation/worker.hpp"
#include "from_environment.hpp"
#include "switch_network.hpp"

using namespace ringcore;
using namespace ringcore::aggregation;
using testing::PacketNetwork;

namespace {

constexpr Nanoseconds kEnd = 60 * kSecond;
constexpr Nanoseconds kSilence = 3 * kSecond;
constexpr std::uint64_t kSession = 77;

Key test_key() {
  Key key;
  for (std::size_t i = 0; i < Key::kBytes; ++i) key.bytes[i] = static_cast<std::byte>(i);
  return key;
}

struct SwitchNode {
  int node = 0;
  SwitchConfig config;
  std::unique_ptr<Switch> running;  // null: it is dead
  std::vector<Nanoseconds> changes;  // it dies, comes back, dies, ...
};

// Tensors one after the other; what is summed has whole numbers, whose sums are exact, beside those whose bits tell in
// which order they were added.
struct Rank final : Source {
  int node = 0;
  int number = 0;
  std::unique_ptr<Worker> worker;
  std::vector<std::vector<float>> tensors;
  std::vector<Nanoseconds> pauses;
  std::size_t begun = 0;
  std::size_t done = 0;
  std::optional<Tensor> tensor;
  Segment next = 0;
  Nanoseconds begin_at = 0;
  std::optional<Nanoseconds> dies_at;
  bool dead = false;
  bool integers = false;
  std::uint32_t ranks = 0;

  bool ready(Segment segment) override { return tensor && tensor->ready(segment); }
  Contribution contribution(Segment segment) override { return tensor->contribution(segment); }
  bool take(Segment segment, const Contribution& sum) override { return tensor->take(segment, sum); }

  void turn(Nanoseconds now) {
    while (true) {
      if (tensor && tensor->done()) {
        next = tensor->end();
        tensor.reset();
        ++done;
        if (done < tensors.size()) begin_at = now + pauses[done];
      }
      if (tensor || begun == tensors.size() || now < begin_at) return;
      worker->join(now);
      tensor.emplace(std::span(tensors[begun++]), next, integers, ranks);
    }
  }
};

float value_of(int rank, std::size_t tensor, std::size_t i) {
  if (i % 2 == 0) return static_cast<float>((rank + 1) * 3 + static_cast<int>(tensor) + static_cast<int>(i));
  return (rank % 2 == 0 ? 1e6F : -1e6F) + 0.1F * static_cast<float>(rank + 1) + static_cast<float>(i);
}

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : network_(seed, weather_of(seed)) {
    const int count = 1 + static_cast<int>(network_.below(5));
    const bool two_levels = count >= 2 && network_.chance(0.4);
    const auto window = static_cast<std::uint32_t>(std::size_t{2} << network_.below(5));
    integers_ = network_.chance(0.3);
    // Node 0 is the switch that all or other switches are under.
    add_switch(0, two_levels ? 2 : 0, std::nullopt);
    if (two_levels) {
      const int first = 1 + static_cast<int>(network_.below(static_cast<std::uint64_t>(count) - 1));
      add_switch(1, static_cast<std::uint32_t>(first), 0);
      add_switch(2, static_cast<std::uint32_t>(count - first), 0);
      first_rack_ = first;
    }
    const bool may_die = network_.chance(0.5);
    for (SwitchNode& each : switches_) {
      if (!may_die || !network_.chance(0.6)) continue;
      const auto times = 1 + network_.below(3);
      Nanoseconds at = 0;
      for (std::uint64_t i = 0; i < times; ++i) {
        at += static_cast<Nanoseconds>(network_.below(30 * kMillisecond));
        each.changes.push_back(at);
        if (network_.chance(0.1)) {
          lost_for_good_ = true;
          break;
        }
        at += static_cast<Nanoseconds>(network_.below(200 * kMillisecond));
        each.changes.push_back(at);
      }
    }
    std::vector<std::size_t> sizes;
    for (std::uint64_t i = 1 + network_.below(6); i > 0; --i) {
      sizes.push_back(1 + network_.below(network_.chance(0.2) ? 40 * kElements : 2 * kElements));
    }
    for (int number = 0; number < count; ++number) {
      auto rank = std::make_unique<Rank>();
      rank->node = 10 + number;
      rank->number = number;
      rank->integers = integers_;
      rank->ranks = static_cast<std::uint32_t>(count);
      const int above = !two_levels ? 0 : number < first_rack_ ? 1 : 2;
      rank->worker = std::make_unique<Worker>(WorkerConfig{.session = kSession,
                                                           .key = key_of_session(test_key(), kSession),
                                                           .member = static_cast<MemberId>(number),
                                                           .ranks = static_cast<std::uint32_t>(count),
                                                           .window = window,
                                                           .silence = kSilence,
                                                           .to = PacketNetwork::address_of(above)},
                                              *rank);
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        std::vector<float>& tensor = rank->tensors.emplace_back(sizes[t]);
        for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = value_of(number, t, i);
        const bool slow = network_.chance(0.1);
        rank->pauses.push_back(static_cast<Nanoseconds>(network_.below(slow ? kSecond : kMillisecond)));
      }
      rank->begin_at = rank->pauses.front();
      if (network_.chance(0.05)) {
        rank->dies_at = static_cast<Nanoseconds>(network_.below(50 * kMillisecond));
        somebody_dies_ = true;
      }
      ranks_.push_back(std::move(rank));
    }
  }

  std::string run() {
    Nanoseconds now = 0;
    while (now < kEnd && !all_ended()) {
      turn(now);
      Nanoseconds next = next_event(now);
      if (next >= kEnd) break;
      now = std::max(now, next);
      while (!network_.empty() && network_.next() <= now) deliver(network_.take(), now);
    }
    return flaw();
  }

 private:
  static PacketNetwork::Weather weather_of(std::uint64_t seed) {
    std::mt19937_64 draw(seed ^ 0x5eed);
    const double bad[] = {0, 0.001, 0.01, 0.05, 0.2};
    return {.lost = bad[draw() % 5], .doubled = bad[draw() % 5], .late = bad[draw() % 5]};
  }

  void add_switch(int node, std::uint32_t members, std::optional<int> parent) {
    SwitchNode& added = switches_.emplace_back();
    added.node = node;
    added.config = {.key = test_key(), .seed = 1000U * static_cast<std::uint32_t>(node + 1), .members = members};
    added.config.silence = kSilence;
    if (parent) added.config.parent = PacketNetwork::address_of(*parent);
    added.config.own_id = static_cast<MemberId>(0x8000 + node);
    added.running = std::make_unique<Switch>(added.config);
  }

  void turn(Nanoseconds now) {
    for (SwitchNode& each : switches_) {
      while (!each.changes.empty() && each.changes.front() <= now) {
        each.changes.erase(each.changes.begin());
        each.config.seed += 100;
        each.running = each.running == nullptr ? std::make_unique<Switch>(each.config) : nullptr;
      }
      if (each.running == nullptr) continue;
      each.running->check_timers(now, out_);
      network_.send(each.node, out_, now);
    }
    for (const auto& rank : ranks_) {
      if (rank->dies_at && *rank->dies_at <= now) rank->dead = true;
      if (rank->dead) continue;
      rank->turn(now);
      rank->worker->send(out_, now, 1 + network_.below(64));
      rank->turn(now);
      network_.send(rank->node, out_, now);
    }
  }

  Nanoseconds next_event(Nanoseconds now) const {
    Nanoseconds next = network_.empty() ? kEnd : network_.next();
    for (const SwitchNode& each : switches_) {
      if (!each.changes.empty()) next = std::min(next, each.changes.front());
      if (each.running != nullptr) next = std::min(next, each.running->next_timer());
    }
    for (const auto& rank : ranks_) {
      if (rank->dead) continue;
      next = std::min(next, rank->worker->next_timer());
      if (!rank->tensor && rank->begun < rank->tensors.size()) next = std::min(next, rank->begin_at);
      if (rank->dies_at) next = std::min(next, *rank->dies_at);
    }
    return std::max(next, now + 1'000);
  }

  void deliver(const PacketNetwork::Arrival& arrival, Nanoseconds now) {
    for (SwitchNode& each : switches_) {
      if (each.node != arrival.to || each.running == nullptr) continue;
      each.running->receive(arrival.bytes, PacketNetwork::address_of(arrival.from), now, out_);
      network_.send(each.node, out_, now);
    }
    for (const auto& rank : ranks_) {
      if (rank->node != arrival.to || rank->dead) continue;
      const auto packet = parse(arrival.bytes);
      if (packet && is_authentic(*packet, key_of_session(test_key(), kSession))) rank->worker->receive(*packet, now);
    }
  }

  bool all_ended() const {
    return std::ranges::all_of(ranks_, [](const auto& rank) {
      return rank->dead || rank->worker->failure() || rank->done == rank->tensors.size();
    });
  }

  std::string flaw() const {
    for (const auto& rank : ranks_) {
      const std::string who = "rank " + std::to_string(rank->number);
      if (const std::string wrong = wrong_sum(*rank); !wrong.empty()) return who + ": " + wrong;
      if (rank->dead || rank->done == rank->tensors.size()) continue;
      const auto& failure = rank->worker->failure();
      using Kind = Worker::Failure::Kind;
      if (failure && lost_for_good_ && (failure->kind == Kind::kSilent || failure->kind == Kind::kNoParent)) continue;
      if (failure && somebody_dies_ && failure->kind == Kind::kNoParent) continue;
      if (failure) return who + " failed with " + std::to_string(static_cast<int>(failure->kind));
      // Whoever waits for a dead one goes on asking: the engine has links to notice it by.
      if (somebody_dies_ || lost_for_good_) continue;
      return who + " hangs at segment " + std::to_string(rank->worker->base());
    }
    return "";
  }

  std::string wrong_sum(const Rank& rank) const {
    for (std::size_t t = 0; t < rank.done; ++t) {
      for (std::size_t i = 0; i < rank.tensors[t].size(); ++i) {
        double sum = 0;
        for (const auto& each : ranks_) sum += value_of(each->number, t, i);
        const float is = rank.tensors[t][i];
        const double near = integers_ ? 1e-2 : i % 2 == 0 ? 0 : 1;
        if (!(std::abs(is - sum) <= near)) {
          return "tensor " + std::to_string(t) + " has " + std::to_string(is) + " for " + std::to_string(sum);
        }
        for (const auto& each : ranks_) {
          if (each->done > t && std::bit_cast<std::uint32_t>(each->tensors[t][i]) != std::bit_cast<std::uint32_t>(is)) {
            return "tensor " + std::to_string(t) + " has other bits than on rank " + std::to_string(each->number);
          }
        }
      }
    }
    return "";
  }

  PacketNetwork network_;
  std::deque<SwitchNode> switches_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Outbox out_;
  int first_rack_ = 0;
  bool integers_ = false;
  bool lost_for_good_ = false;
  bool somebody_dies_ = false;
};

}  // namespace

TEST_CASE("switch schedules: no sum is wrong, nothing hangs") {
  const std::uint64_t only = testing::from_environment("RINGCORE_SWITCH_SEED", 0);
  const std::uint64_t first = only != 0 ? only : testing::from_environment("RINGCORE_SWITCH_FIRST", 1);
  const std::uint64_t count = only != 0 ? 1 : testing::from_environment("RINGCORE_SWITCH_SEEDS", 5000);
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    const std::string flaw = Schedule(seed).run();
    if (flaw.empty()) continue;
    ++failures;
    MESSAGE("seed " << seed << ": " << flaw);
  }
  CHECK(failures == 0);
}
