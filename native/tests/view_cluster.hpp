// Members, processes that arrive, and the witness, in virtual time, with all that can happen to processes and cables.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/view_change.hpp"

namespace ringcore::testing {

class ViewCluster {
 public:
  using Time = std::int64_t;

  struct Options {
    int members = 3;
    int places = 3;  // more than members: these arrive
    int per_host = 1;  // processes of one host see each other end, and end whom they suspect
    bool witness = true;
    std::size_t direct_members = SIZE_MAX;  // among more, news goes from neighbour to neighbour
    int watched = 0;  // by so many places on either side, and by those that speak with it; 0: by all
    Time patience = 40;  // silence that makes a process suspect another one
  };

  ViewCluster(const Options& options, std::uint64_t seed) : options_(options), generator_(seed) {
    engine::View first{.epoch = 1};
    for (engine::Place place = 0; place < options.members; ++place) first.members.push_back(place);
    witness_ = std::make_unique<engine::Witness>(first);
    for (engine::Place place = 0; place < options.places; ++place) {
      processes_.emplace_back(engine::ViewChange(first, place, options.witness, 12, {}, options.direct_members));
    }
    for (engine::Place place = 0; place < options.places; ++place) installed(place);
  }

  void at(Time when, std::function<void()> event) { events_.push({when, next_event_++, std::move(event)}); }
  Time now() const { return now_; }
  Time drawn(Time from, Time to) {
    return from + static_cast<Time>(generator_() % static_cast<std::uint64_t>(to - from));
  }

  // Ends a process. Its host sees it at once, the witness a little later if `seen`.
  void kill(engine::Place place, bool seen = true) {
    Process& process = processes_[place];
    if (process.dead) return;
    process.dead = true;
    for (engine::Place other = 0; other < size(); ++other) {
      if (other == place) continue;
      if (host(other) == host(place)) {
        at(now_ + drawn(1, 5), [this, other, place] { told_of_end(other, place); });
      }
      watch(other, place);
    }
    if (seen && options_.witness) at(now_ + drawn(3, 20), [this, place] { witness_sees_end(place); });
  }
  // It does nothing until then; its messages lie in their links.
  void stop(engine::Place place, Time until) {
    Process& process = processes_[place];
    process.stopped_until = std::max(process.stopped_until, until);
    for (engine::Place other = 0; other < size(); ++other) {
      if (other != place) watch(other, place);
    }
  }
  // What `from` sends to `to` is lost from now on, for good: a connection that was cut is not made again.
  void cut(engine::Place from, engine::Place to) {
    cut_.insert({from, to});
    if (from != engine::kWitness && to != engine::kWitness) watch(to, from);
  }
  void kill_witness() {
    witness_dead_ = true;
    for (engine::Place place = 0; place < size(); ++place) {
      at(now_ + drawn(1, 40), [this, place] { act(place, [](auto& change) { change.lose_witness(); }); });
    }
  }
  // The process at `place`, which is no member, asks all members to let it in.
  void arrive(engine::Place place) {
    if (processes_[place].left || processes_[place].change.evicted()) return;
    for (engine::Place other = 0; other < size(); ++other) {
      if (other == place || is_cut(place, other) || is_cut(other, place)) continue;
      at(now_ + drawn(1, 10), [this, other, place] {
        if (!is_dead(place)) act(other, [place](auto& change) { change.arrive(place); });
      });
    }
  }
  // One that is no member has only to end.
  void leave(engine::Place place) {
    if (!processes_[place].change.is_member()) return kill(place);
    processes_[place].left = true;
    act(place, [](auto& change) { change.leave(); });
  }
  // A backend is of no use to it any more: all are to do without.
  void give_up(engine::Place place) {
    act(place, [](auto& change) {
      if (change.is_member()) change.give_up_backends();
    });
    processes_[place].gave_up = processes_[place].gave_up || processes_[place].change.is_member();
  }
  void commit(engine::Place place, std::uint64_t step) {
    if (!is_dead(place)) processes_[place].change.commit(step);
  }
  // Ends a process in the middle of its n-th message from now on: that one is not sent.
  void kill_at_message(engine::Place place, int n, bool seen = true) {
    processes_[place].sends_left = n;
    processes_[place].end_is_seen = seen;
  }

  // Until nothing happens any more, or the time is over: `flaw()` says what was wrong.
  void run(Time until) {
    while (!events_.empty() && events_.top().when <= until && flaw_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.when;
      event.run();
    }
    now_ = std::max(now_, until);
  }
  const std::string& flaw() const { return flaw_; }
  // When the last view was installed anywhere.
  Time installed_at() const { return installed_at_; }

  int size() const { return static_cast<int>(processes_.size()); }
  int host(engine::Place place) const { return place / options_.per_host; }
  bool gave_up(engine::Place place) const { return processes_[place].gave_up; }
  bool is_dead(engine::Place place) const { return processes_[place].dead; }
  const engine::ViewChange& process(engine::Place place) const { return processes_[place].change; }
  const engine::Witness& witness() const { return *witness_; }
  int messages_sent() const { return messages_; }
  bool is_cut(engine::Place from, engine::Place to) const { return cut_.count({from, to}) > 0; }
  // There never was one, or it can be asked.
  bool needs_no_witness_or_reaches_it(engine::Place place) const {
    return !options_.witness ||
           (!witness_dead_ && !is_cut(place, engine::kWitness) && !is_cut(engine::kWitness, place));
  }
  // Neither stopped at any time, nor on its way out.
  bool is_sound(engine::Place place) const { return processes_[place].stopped_until == 0 && !processes_[place].left; }
  // Those who live and are members of their own view.
  engine::Places alive() const {
    engine::Places places;
    for (engine::Place place = 0; place < size(); ++place) {
      if (!is_dead(place) && processes_[place].change.is_member()) places.push_back(place);
    }
    return places;
  }

 private:
  struct Process {
    explicit Process(engine::ViewChange change) : change(std::move(change)) {}
    engine::ViewChange change;
    bool dead = false;
    Time stopped_until = 0;
    int sends_left = -1;  // until it is killed
    bool end_is_seen = true;
    bool left = false;
    bool gave_up = false;
    bool plans_only = false;  // in the last view that it was a member of
    int asks_left = 5;  // to be let in
    std::vector<std::function<void()>> waiting;  // while it is stopped
    std::uint32_t epoch = 0;
  };
  struct Event {
    Time when;
    std::uint64_t number;
    std::function<void()> run;
    bool operator<(const Event& other) const { return when != other.when ? when > other.when : number > other.number; }
  };

  void told_of_end(engine::Place who, engine::Place ended) {
    act(who, [ended](auto& change) { change.prove_ended(ended); });
  }

  // The launcher, which tells all.
  void witness_sees_end(engine::Place ended) {
    if (witness_dead_) return;
    witness_->prove_ended(ended);
    for (engine::Place place = 0; place < size(); ++place) {
      if (!is_dead(place)) deliver(engine::kWitness, place, engine::encode(witness_->proofs()));
    }
  }

  // `who` looks whether it has heard of `whom` since.
  void watch(engine::Place who, engine::Place whom) {
    if (watches(who, whom)) look_for(who, whom, options_.patience);
  }

  bool watches(engine::Place who, engine::Place whom) const {
    const int distance = std::abs(who - whom);
    return options_.watched == 0 || std::min(distance, size() - distance) <= options_.watched;
  }

  void look_for(engine::Place who, engine::Place whom, Time patience) {
    at(now_ + patience + drawn(0, 10), [this, who, whom] {
      const Process& silent = processes_[whom];
      if (!silent.dead && silent.stopped_until <= now_ && !is_cut(whom, who)) return;
      if (host(who) == host(whom) && !is_dead(who)) return kill(whom);  // it could still write into shared memory
      act(who, [whom](auto& change) { change.suspect(whom); });
    });
  }

  void act(engine::Place place, const std::function<void(engine::ViewChange&)>& action) {
    Process& process = processes_[place];
    if (process.dead) return;
    if (process.stopped_until > now_) {
      if (process.waiting.empty()) {
        at(process.stopped_until, [this, place] {
          for (const auto& late : std::exchange(processes_[place].waiting, {})) late();
        });
      }
      process.waiting.push_back([this, place, action] { act(place, action); });
      return;
    }
    action(process.change);
    installed(place);
    post(place);
    // Its clock goes on, for whoever has to try again.
    if (process.change.changing() && !std::exchange(ticking_[place], true)) tick(place);
  }

  void tick(engine::Place place) {
    at(now_ + 5, [this, place] {
      ticking_[place] = false;
      const Time now = now_;
      if (ticks_++ < 100'000) act(place, [now](auto& change) { change.check_timers(now); });
    });
  }

  void post(engine::Place from) {
    Process& process = processes_[from];
    for (auto& [to, message] : process.change.take_outbox()) {
      if (process.sends_left >= 0 && process.sends_left-- == 0) return kill(from, process.end_is_seen);
      deliver(from, to, engine::encode(message));
    }
  }

  void deliver(engine::Place from, engine::Place to, std::vector<std::byte> bytes) {
    ++messages_;
    // There was no connection, and a process that is no more makes none.
    if (from >= 0 && to >= 0 && !watches(from, to)) look_for(from, to, is_dead(to) ? 2 : 2 * options_.patience);
    Time& last = last_delivery_[{from, to}];
    last = std::max(last, now_ + drawn(1, 10));
    at(last, [this, from, to, bytes = std::move(bytes)] {
      if (is_cut(from, to)) return;
      if (to == engine::kWitness) return ask_witness(from, bytes);
      act(to, [from, bytes](auto& change) { change.receive(from, engine::decode_view_message(bytes)); });
    });
  }

  void ask_witness(engine::Place from, const std::vector<std::byte>& bytes) {
    if (witness_dead_) return;
    if (const auto answer = witness_->receive(engine::decode_view_message(bytes))) {
      deliver(engine::kWitness, from, engine::encode(*answer));
    }
  }

  // What must hold whenever a process has a new view.
  void installed(engine::Place place) {
    const engine::View& view = processes_[place].change.view();
    if (view.epoch == processes_[place].epoch) return;
    processes_[place].epoch = view.epoch;
    installed_at_ = now_;
    if (!processes_[place].change.is_member()) {
      const bool arrives = place >= options_.members && !processes_[place].change.evicted();
      if (arrives && now_ > 0 && processes_[place].asks_left-- > 0) at(now_ + 60, [this, place] { arrive(place); });
      return;
    }
    const bool takes_back = std::exchange(processes_[place].plans_only, view.plans_only) && !view.plans_only;
    if (takes_back) flaw_ = "epoch " + std::to_string(view.epoch) + " takes back that a backend was given up";
    if (!plans_only_in_.emplace(view.epoch, view.plans_only).second && plans_only_in_[view.epoch] != view.plans_only) {
      flaw_ = "in epoch " + std::to_string(view.epoch) + " some have given up a backend, and others not";
    }
    const auto [known, is_new] = members_of_.emplace(view.epoch, view.members);
    if (!is_new && known->second != view.members) {
      flaw_ = "epoch " + std::to_string(view.epoch) + " has two lists of members";
    }
    // A view can do something while all its members live and are in it.
    std::set<std::uint32_t> active;
    for (const auto& [epoch, members] : members_of_) {
      const bool all = std::all_of(members.begin(), members.end(), [&](engine::Place member) {
        return !processes_[member].dead && processes_[member].change.view().epoch == epoch;
      });
      if (all && !members.empty()) active.insert(epoch);
    }
    if (active.size() > 1) flaw_ = "two parts of the job go on, each without the other";
  }

  Options options_;
  std::mt19937_64 generator_;
  std::vector<Process> processes_;
  std::unique_ptr<engine::Witness> witness_;
  bool witness_dead_ = false;
  std::set<std::pair<engine::Place, engine::Place>> cut_;
  std::map<std::pair<engine::Place, engine::Place>, Time> last_delivery_;
  std::map<std::uint32_t, engine::Places> members_of_;
  std::map<std::uint32_t, bool> plans_only_in_;  // by epoch
  std::map<engine::Place, bool> ticking_;
  std::priority_queue<Event> events_;
  std::uint64_t next_event_ = 0;
  Time now_ = 0;
  int messages_ = 0;
  int ticks_ = 0;
  Time installed_at_ = 0;
  std::string flaw_;
};

}  // namespace ringcore::testing
