#include "plan/simulation.hpp"

#include <algorithm>
#include <utility>

#include "base/long_way.hpp"
#include "base/quantise.hpp"

namespace ringcore::plan {
namespace {

// Over a long way TCP takes seconds to find out what part of a port a connection can have. Those that share one send at
// once, each with an even part of it, also while others send nothing, and together leave some of it idle. Measured at 100
// Mbit/s and 80 ms there and back, 0.1 % of the packets lost, with BBR: a ring, where every rank sends to one, fills 0.92
// of the ports, the direct exchange between four 0.70, and trees over all ways, whose transfers wait for each other, 0.27.
constexpr double kIdleOnLongWay = 1.3;

bool sends(StepKind kind) { return kind == StepKind::kSend || kind == StepKind::kSignal; }

std::uint32_t index_in(const std::vector<Rank>& sorted, Rank rank) {
  return static_cast<std::uint32_t>(std::lower_bound(sorted.begin(), sorted.end(), rank) - sorted.begin());
}

void sort_unique(std::vector<Rank>& ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
}

}  // namespace

Simulation::Simulation(const Excerpt& plan, const Topology& topology, const CostModel& model, double chunk_bytes,
                       std::uint32_t repeats, const Disturbance& disturbance)
    : plan_(plan),
      topology_(topology),
      symmetry_(plan.symmetry),
      model_(model),
      disturbance_(disturbance),
      chunk_bytes_(chunk_bytes),
      sent_bytes_(chunk_bytes * quantised_share(plan.compression)),
      repeats_(plan.programs[0].segment_ends.empty() ? 1 : repeats),
      ways_(topology),
      generator_(disturbance.seed) {
  compile();
  find_actors(!disturbance.none());
  find_hosts();
  connect();
  find_resources();
  find_shared();
}

double Simulation::steps_of(const Excerpt& plan, std::uint32_t repeats, const Disturbance& disturbance) {
  const double images = disturbance.none() ? 1 : plan.symmetry.turns();
  return static_cast<double>(plan.steps()) * repeats * images;
}

void Simulation::compile() {
  for (const Program& program : plan_.programs) {
    Orbit& orbit = orbits_.emplace_back();
    for (const Channel& channel : program.channels) {
      for (const Step& step : channel) {
        if (step.peer >= 0) (sends(step.kind) ? orbit.sends_to : orbit.receives_from).push_back(step.peer);
      }
    }
    sort_unique(orbit.sends_to);
    sort_unique(orbit.receives_from);
    orbit.sending_channel.resize(orbit.sends_to.size());
    for (std::size_t c = 0; c < program.channels.size(); ++c) {
      orbit.tracks.push_back(compile_channel(program, c, orbit));
    }
    note_what_is_awaited(program, orbit);
  }
}

Simulation::Track Simulation::compile_channel(const Program& program, std::size_t channel, Orbit& orbit) {
  Track track;
  track.moves.reserve(program.channels[channel].size());
  for (const Step& step : program.channels[channel]) {
    std::size_t operands = step.sources.size() + step.targets.size();
    if (step.kind == StepKind::kRecv) operands = step.targets.size();  // the source says only how large it is
    Move move{.kind = step.kind, .operands = static_cast<std::uint32_t>(operands)};
    if (step.peer >= 0) move.peer = index_in(sends(step.kind) ? orbit.sends_to : orbit.receives_from, step.peer);
    if (sends(step.kind)) orbit.sending_channel[move.peer] = channel;
    track.moves.push_back(move);
  }
  for (const std::size_t end : program.segment_ends) track.segment_ends.push_back(static_cast<std::uint32_t>(end));
  if (track.segment_ends.empty()) track.segment_ends = {static_cast<std::uint32_t>(track.moves.size())};
  return track;
}

void Simulation::note_what_is_awaited(const Program& program, Orbit& orbit) {
  for (std::size_t c = 0; c < program.channels.size(); ++c) {
    for (std::size_t i = 0; i < program.channels[c].size(); ++i) {
      const Step& step = program.channels[c][i];
      if (step.after_channel < 0) continue;
      const auto channel = static_cast<std::size_t>(step.after_channel);
      std::uint32_t& note = orbit.tracks[channel].moves[static_cast<std::size_t>(step.after_step)].note;
      if (note == kNone) note = orbit.notes++;
      orbit.tracks[c].moves[i].after = note;
    }
  }
}

void Simulation::find_actors(bool all) {
  const int count = all ? symmetry_.nodes() : symmetry_.orbits();
  actors_.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const Rank node = all ? i : symmetry_.representative(i);
    Actor actor{.node = node,
                .turn = symmetry_.turn_of(node),
                .orbit = static_cast<std::uint32_t>(symmetry_.orbit_of(node)),
                .first_thread = static_cast<std::uint32_t>(threads_.size()),
                .first_note = static_cast<std::uint32_t>(notes_.size()),
                .host = topology_.host_of[node]};
    const auto slow = disturbance_.slow_hosts.find(actor.host);
    if (slow != disturbance_.slow_hosts.end()) actor.slowness = slow->second;
    for (const Track& track : orbits_[actor.orbit].tracks) {
      threads_.push_back({.actor = static_cast<std::uint32_t>(i)});
      skip_empty_segments(threads_.back(), track);
    }
    notes_.resize(notes_.size() + orbits_[actor.orbit].notes, kNever);
    actors_.push_back(actor);
  }
}

// Hosts are images of each other where their first ranks are.
void Simulation::find_hosts() {
  const auto hosts =
      static_cast<std::size_t>(1 + *std::max_element(topology_.host_of.begin(), topology_.host_of.end()));
  image_.assign(hosts, -1);
  crowd_.assign(hosts, 1);
  const bool all = actors_.size() == topology_.host_of.size();
  for (const Actor& actor : actors_) {
    if (image_[actor.host] >= 0) continue;
    int images = 0;
    for (int turn = 0; turn < (all ? 1 : symmetry_.turns()); ++turn) {
      int& image = image_[topology_.host_of[symmetry_.turned(actor.node, turn)]];
      if (image < 0) ++images;
      image = actor.host;
    }
    if (!all) crowd_[actor.host] = symmetry_.turns() / images;
  }
}

std::uint32_t Simulation::actor_of(Rank node) const {
  const bool all = actors_.size() == topology_.host_of.size();
  return static_cast<std::uint32_t>(all ? node : symmetry_.orbit_of(node));
}

// What the representative of the sender's orbit sends to is the receiver, turned back.
std::uint32_t Simulation::stream_between(Rank from, Rank to) const {
  const Actor& sender = actors_[actor_of(from)];
  const std::vector<Rank>& peers = orbits_[sender.orbit].sends_to;
  const Rank as_sent = symmetry_.turned(to, symmetry_.inverse(symmetry_.turn_of(from)));
  const std::uint32_t index = index_in(peers, as_sent);
  return index < peers.size() && peers[index] == as_sent ? sender.first_sent + index : kNone;
}

void Simulation::connect() {
  for (std::uint32_t i = 0; i < actors_.size(); ++i) {
    Actor& actor = actors_[i];
    actor.first_sent = static_cast<std::uint32_t>(streams_.size());
    const Orbit& orbit = orbits_[actor.orbit];
    for (std::size_t peer = 0; peer < orbit.sends_to.size(); ++peer) {
      const Rank to = symmetry_.turned(orbit.sends_to[peer], actor.turn);
      streams_.push_back({.from = i,
                          .to = actor_of(to),
                          .channel = static_cast<std::uint32_t>(orbit.sending_channel[peer]),
                          .between_hosts = topology_.host_of[to] != actor.host});
    }
  }
  for (Actor& actor : actors_) {
    actor.first_received = static_cast<std::uint32_t>(received_.size());
    for (const Rank peer : orbits_[actor.orbit].receives_from) {
      received_.push_back(stream_between(symmetry_.turned(peer, actor.turn), actor.node));
    }
  }
}

void Simulation::find_resources() {
  const std::size_t hosts = image_.size();
  const std::size_t of_hosts = 2 * hosts;
  const std::size_t of_actors = of_hosts + 2 * actors_.size();
  resources_.resize(of_actors + topology_.links.cables.size());
  for (Stream& stream : streams_) {
    const int from = actors_[stream.from].host;
    const int to = actors_[stream.to].host;
    stream.first_need = static_cast<std::uint32_t>(needed_.size());
    const auto need = [&](std::size_t resource) { needed_.push_back(static_cast<std::uint32_t>(resource)); };
    stream.latency_s = cost_of(stream).latency_s;
    if (!stream.between_hosts) {
      need(of_hosts + 2 * std::size_t{stream.from});
      need(of_hosts + 2 * std::size_t{stream.to} + 1);
    } else if (topology_.links.cables.empty()) {
      need(2 * static_cast<std::size_t>(image_[from]));
      need(2 * static_cast<std::size_t>(image_[to]) + 1);
    } else {
      stream.latency_s = 0;
      for (const std::size_t cable : ways_.between(from, to)) {
        need(of_actors + cable);
        stream.latency_s += topology_.links.cables[cable].latency_s;
      }
    }
    stream.needs = static_cast<std::uint32_t>(needed_.size()) - stream.first_need;
  }
}

// Where an order matters. What one channel of a rank copies out has one anyhow.
void Simulation::find_shared() {
  std::vector<std::uint32_t> copying(actors_.size(), kNone);
  for (const Stream& stream : streams_) {
    if (stream.between_hosts) {
      for (const std::uint32_t need : needs(stream)) ++resources_[need].streams;
      continue;
    }
    std::uint32_t& channel = copying[stream.from];
    if (channel != stream.channel) ++resources_[needs(stream)[0]].streams;
    channel = stream.channel;
    ++resources_[needs(stream)[1]].streams;
  }
  for (Stream& stream : streams_) {
    for (const std::uint32_t need : needs(stream)) stream.shared = stream.shared || resources_[need].streams > 1;
    stream.shares_long_way = stream.shared && stream.latency_s >= kLongWaySeconds;
  }
}

double Simulation::run() {
  for (std::uint32_t thread = 0; thread < threads_.size(); ++thread) ready_.push_back(thread);
  go_on();
  while (!turns_.empty()) {
    const Turn turn = turns_.top();
    turns_.pop();
    if (turn.stream != kNone) {
      try_to_depart(turn);
    } else {
      offer(turn);
    }
    go_on();
  }
  double last = 0;
  for (const Thread& thread : threads_) last = std::max(last, thread.now);
  return last;
}

void Simulation::go_on() {
  while (!ready_.empty()) {
    const std::uint32_t thread = ready_.back();
    ready_.pop_back();
    advance(thread);
  }
}

void Simulation::advance(std::uint32_t thread) {
  const Actor& actor = actors_[threads_[thread].actor];
  const Orbit& orbit = orbits_[actor.orbit];
  const Track& track = orbit.tracks[thread - actor.first_thread];
  bool moved = false;
  while (threads_[thread].next < track.moves.size() && step(thread, track)) moved = true;
  if (moved && orbit.tracks.size() > 1) wake_siblings(actor, thread);
}

void Simulation::wake_siblings(const Actor& actor, std::uint32_t but) {
  const auto end = actor.first_thread + static_cast<std::uint32_t>(orbits_[actor.orbit].tracks.size());
  for (std::uint32_t other = actor.first_thread; other < end; ++other) {
    if (other != but) ready_.push_back(other);
  }
}

bool Simulation::step(std::uint32_t index, const Track& track) {
  Thread& thread = threads_[index];
  const Actor& actor = actors_[thread.actor];
  const Move& move = track.moves[thread.next];
  if (move.after != kNone) {
    const double ended = notes_[actor.first_note + move.after];
    if (ended == kNever) return false;
    thread.now = std::max(thread.now, ended);
  }
  switch (move.kind) {
    case StepKind::kSend:
    case StepKind::kSignal: send(thread, move); break;
    case StepKind::kRecv:
    case StepKind::kRecvReduce:
    case StepKind::kWait:
      if (!receive(thread, index, move)) return false;
      break;
    case StepKind::kReduce:
      thread.now += chunk_bytes_ * model_.touch_seconds_per_byte * move.operands * actor.slowness;
      break;
  }
  thread.now += model_.step_s * actor.slowness;
  if (move.note != kNone) notes_[actor.first_note + move.note] = thread.now;
  pass(thread, track);
  return true;
}

// To the next move; at the end of a segment back to its begin, as often as it is repeated.
void Simulation::pass(Thread& thread, const Track& track) const {
  if (++thread.next < track.segment_ends[thread.segment]) return;
  if (++thread.round < repeats_) {
    thread.next = thread.begin;
    return;
  }
  thread.round = 0;
  thread.begin = thread.next;
  skip_empty_segments(thread, track);
}

// Of what a rank has nothing to do in.
void Simulation::skip_empty_segments(Thread& thread, const Track& track) {
  while (thread.segment + 1 < track.segment_ends.size() && track.segment_ends[thread.segment] <= thread.next) {
    ++thread.segment;
  }
}

void Simulation::send(Thread& thread, const Move& move) {
  const Actor& actor = actors_[thread.actor];
  const std::uint32_t number = actor.first_sent + move.peer;
  Stream& stream = streams_[number];
  thread.now += cost_of(stream).message_s * actor.slowness;
  const std::uint32_t chunks = move.operands;
  thread.now += copy_seconds(move, actor);
  if (!stream.shared) {
    double start = std::max(thread.now, stream.free);
    for (const std::uint32_t need : needs(stream)) start = std::max(start, resources_[need].free);
    return depart(stream, start, chunks);
  }
  if (stream.departing.empty()) turns_.push({std::max(thread.now, stream.free), next_number_++, number, kNone});
  append(stream.departing, thread.now, chunks);
}

bool Simulation::receive(Thread& thread, std::uint32_t index, const Move& move) {
  const Actor& actor = actors_[thread.actor];
  const std::uint32_t number = received_[actor.first_received + move.peer];
  if (number == kNone) return false;
  Stream& stream = streams_[number];
  if (stream.arrived.empty()) {
    stream.waiting = index;
    return false;
  }
  thread.now = std::max(thread.now, take(stream.arrived).time) + cost_of(stream).message_s * actor.slowness;
  if (move.kind == StepKind::kRecvReduce) {
    thread.now += move.operands * chunk_bytes_ * model_.touch_seconds_per_byte * actor.slowness;
  }
  if (move.kind != StepKind::kWait) thread.now += copy_seconds(move, actor);
  return true;
}

double Simulation::copy_seconds(const Move& move, const Actor& actor) const {
  if (move.operands < 2) return 0;
  return 2 * move.operands * chunk_bytes_ * model_.touch_seconds_per_byte * actor.slowness;
}

void Simulation::append(Transfers& list, double time, std::uint32_t chunks) {
  std::uint32_t added = unused_;
  if (added == kNone) {
    added = static_cast<std::uint32_t>(transfers_.size());
    transfers_.emplace_back();
  } else {
    unused_ = transfers_[added].next;
  }
  transfers_[added] = {.time = time, .chunks = chunks};
  (list.empty() ? list.head : transfers_[list.tail].next) = added;
  list.tail = added;
}

Simulation::Transfer Simulation::take(Transfers& list) {
  const std::uint32_t taken = list.head;
  const Transfer transfer = transfers_[taken];
  list.head = transfer.next;
  transfers_[taken].next = std::exchange(unused_, taken);
  return transfer;
}

std::span<const std::uint32_t> Simulation::needs(const Stream& stream) const {
  return std::span(needed_).subspan(stream.first_need, stream.needs);
}

std::uint32_t Simulation::last_free(const Stream& stream) const {
  const auto earlier = [&](std::uint32_t a, std::uint32_t b) { return resources_[a].free < resources_[b].free; };
  const std::span<const std::uint32_t> all = needs(stream);
  return *std::max_element(all.begin(), all.end(), earlier);
}

// Else it waits for what is busy longest, with the number that it has: who begins to wait later comes later.
void Simulation::try_to_depart(const Turn& turn) {
  Stream& stream = streams_[turn.stream];
  const std::uint32_t last = last_free(stream);
  if (resources_[last].free > turn.time) {
    resources_[last].waiting.emplace(turn.number, turn.stream);
    return watch(last);
  }
  depart(stream, turn.time, take(stream.departing).chunks);
  if (stream.departing.empty()) return;
  turns_.push({std::max(stream.free, transfers_[stream.departing.head].time), next_number_++, turn.stream, kNone});
}

void Simulation::watch(std::uint32_t resource) {
  Resource& watched = resources_[resource];
  if (watched.watched || watched.waiting.empty()) return;
  watched.watched = true;
  turns_.push({watched.free, watched.waiting.top().first, kNone, resource});
}

// To those who wait for it, until one of them takes it.
void Simulation::offer(const Turn& turn) {
  Resource& resource = resources_[turn.resource];
  while (!resource.waiting.empty() && resource.free <= turn.time) {
    const auto [number, stream] = resource.waiting.top();
    resource.waiting.pop();
    try_to_depart({turn.time, number, stream, kNone});
  }
  resource.watched = false;
  watch(turn.resource);
}

const LinkCost& Simulation::cost_of(const Stream& stream) const {
  return stream.between_hosts ? topology_.links.between_hosts : topology_.links.in_host;
}

void Simulation::depart(Stream& stream, double start, std::uint32_t chunks) {
  const double bytes = (stream.between_hosts ? sent_bytes_ : chunk_bytes_) * chunks;
  double arrival = 0;
  if (!stream.between_hosts) {
    arrival = copy_inside(stream, start, bytes);
  } else {
    arrival = topology_.links.cables.empty() ? pass_ports(stream, start, bytes) : pass_cables(stream, start, bytes);
    arrival += disturbance_.jitter_s * static_cast<double>(generator_() >> 11) * 0x1.0p-53;
  }
  stream.last = std::max(stream.last, arrival);
  append(stream.arrived, stream.last, chunks);
  if (stream.waiting != kNone) ready_.push_back(std::exchange(stream.waiting, kNone));
}

double Simulation::pass_ports(Stream& stream, double start, double bytes) {
  const Actor& from = actors_[stream.from];
  const Actor& to = actors_[stream.to];
  Resource& out = resources_[needs(stream)[0]];
  Resource& in = resources_[needs(stream)[1]];
  const double slowness = std::max(from.slowness, to.slowness);
  const auto busy = [&](const Actor& end) {
    return bytes * topology_.links.port_seconds_per_byte(end.host) * slowness * crowd_[image_[end.host]];
  };
  if (stream.shares_long_way) {
    stream.free = start + std::max(busy(from) * out.streams, busy(to) * in.streams) * kIdleOnLongWay;
  } else {
    out.free = start + busy(from);
    in.free = start + busy(to);
    stream.free = std::max(out.free, in.free);
  }
  return stream.free + stream.latency_s;
}

// The processors of both ends copy, one neighbour's data after the other's.
double Simulation::copy_inside(Stream& stream, double start, double bytes) {
  stream.free = start + bytes * topology_.links.in_host.seconds_per_byte * actors_[stream.from].slowness;
  for (const std::uint32_t need : needs(stream)) resources_[need].free = stream.free;
  return stream.free + stream.latency_s;
}

double Simulation::pass_cables(Stream& stream, double start, double bytes) {
  const double slowness = std::max(actors_[stream.from].slowness, actors_[stream.to].slowness);
  const std::size_t first = resources_.size() - topology_.links.cables.size();
  double slowest = 0;
  for (const std::uint32_t need : needs(stream)) {
    const Cable& cable = topology_.links.cables[need - first];
    if (stream.shares_long_way) {
      slowest = std::max(slowest, cable.seconds_per_byte * resources_[need].streams * kIdleOnLongWay);
    } else {
      resources_[need].free = start + bytes * cable.seconds_per_byte * slowness;
      slowest = std::max(slowest, cable.seconds_per_byte);
    }
  }
  stream.free = start + bytes * slowest * slowness;
  return stream.free + stream.latency_s;
}

}  // namespace ringcore::plan
