#include "plan/simulation.hpp"

#include <algorithm>
#include <utility>

namespace ringcore::plan {
namespace {

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
      repeats_(plan.programs[0].segment_ends.empty() ? 1 : repeats),
      ways_(topology.links.cables),
      cable_free_(topology.links.cables.size(), 0),
      generator_(disturbance.seed) {
  compile();
  find_actors(!disturbance.none());
  find_hosts();
  connect();
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
    Move move{.kind = step.kind, .operands = static_cast<std::uint32_t>(step.sources.size() + step.targets.size())};
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
  ports_.resize(hosts);
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

// Where an order matters: several streams through a port.
void Simulation::find_shared() {
  for (const Stream& stream : streams_) {
    if (!stream.between_hosts) continue;
    ++ports_[image_[actors_[stream.from].host]].outbound;
    ++ports_[image_[actors_[stream.to].host]].inbound;
  }
  for (Stream& stream : streams_) {
    if (!stream.between_hosts) continue;
    const Port& from = ports_[image_[actors_[stream.from].host]];
    const Port& to = ports_[image_[actors_[stream.to].host]];
    stream.shared = !cable_free_.empty() || from.outbound > 1 || to.inbound > 1;
  }
  share_copies();
}

// Several ranks that copy to one, or several channels of one that copy.
void Simulation::share_copies() {
  std::vector<int> inbound(actors_.size(), 0);
  std::vector<std::uint32_t> channel(actors_.size(), kNone);
  std::vector<bool> several(actors_.size(), false);
  for (const Stream& stream : streams_) {
    if (stream.between_hosts) continue;
    ++inbound[stream.to];
    if (channel[stream.from] == kNone) channel[stream.from] = stream.channel;
    if (channel[stream.from] != stream.channel) several[stream.from] = true;
  }
  for (Stream& stream : streams_) {
    if (!stream.between_hosts) stream.shared = inbound[stream.to] > 1 || several[stream.from];
  }
}

double Simulation::run() {
  for (std::uint32_t thread = 0; thread < threads_.size(); ++thread) ready_.push_back(thread);
  go_on();
  while (!turns_.empty()) {
    const Turn turn = turns_.top();
    turns_.pop();
    take_turn(turn);
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
  const bool signal = move.kind == StepKind::kSignal;
  if (!stream.shared) return depart(stream, std::max(thread.now, earliest(stream)), signal);
  if (stream.departing.empty()) want_turn(number, std::max(thread.now, stream.free));
  append(stream.departing, thread.now, signal);
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
    thread.now += chunk_bytes_ * model_.touch_seconds_per_byte * actor.slowness;
  }
  return true;
}

void Simulation::append(Transfers& list, double time, bool signal) {
  std::uint32_t added = unused_;
  if (added == kNone) {
    added = static_cast<std::uint32_t>(transfers_.size());
    transfers_.emplace_back();
  } else {
    unused_ = transfers_[added].next;
  }
  transfers_[added] = {.time = time, .signal = signal};
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

void Simulation::want_turn(std::uint32_t stream, double time) { turns_.push({time, next_number_++, stream}); }

// Who finds busy what it needs keeps its number: whoever begins to wait later comes later.
void Simulation::take_turn(const Turn& turn) {
  Stream& stream = streams_[turn.stream];
  const double start = earliest(stream);
  if (start > turn.time) return turns_.push({start, turn.number, turn.stream});
  depart(stream, turn.time, take(stream.departing).signal);
  if (!stream.departing.empty()) {
    want_turn(turn.stream, std::max(stream.free, transfers_[stream.departing.head].time));
  }
}

const LinkCost& Simulation::cost_of(const Stream& stream) const {
  return stream.between_hosts ? topology_.links.between_hosts : topology_.links.in_host;
}

// When all that a stream goes through is free.
double Simulation::earliest(const Stream& stream) {
  const Actor& from = actors_[stream.from];
  const Actor& to = actors_[stream.to];
  if (!stream.between_hosts) return std::max({stream.free, from.copied_out, to.copied_in});
  if (cable_free_.empty()) return std::max({stream.free, ports_[image_[from.host]].out, ports_[image_[to.host]].in});
  double free = stream.free;
  for (const std::size_t cable : ways_.between(from.host, to.host)) free = std::max(free, cable_free_[cable]);
  return free;
}

void Simulation::depart(Stream& stream, double start, bool signal) {
  const double bytes = signal ? 0 : chunk_bytes_;
  double arrival = 0;
  if (!stream.between_hosts) {
    arrival = copy_inside(stream, start, bytes);
  } else {
    arrival = cable_free_.empty() ? pass_ports(stream, start, bytes) : pass_cables(stream, start, bytes);
    arrival += disturbance_.jitter_s * static_cast<double>(generator_() >> 11) * 0x1.0p-53;
  }
  stream.last = std::max(stream.last, arrival);
  append(stream.arrived, stream.last, signal);
  if (stream.waiting != kNone) ready_.push_back(std::exchange(stream.waiting, kNone));
}

double Simulation::pass_ports(Stream& stream, double start, double bytes) {
  const Actor& from = actors_[stream.from];
  const Actor& to = actors_[stream.to];
  Port& source = ports_[image_[from.host]];
  Port& target = ports_[image_[to.host]];
  const double alone = bytes * topology_.links.between_hosts.seconds_per_byte * std::max(from.slowness, to.slowness);
  source.out = start + alone * crowd_[image_[from.host]];
  target.in = start + alone * crowd_[image_[to.host]];
  stream.free = std::max(source.out, target.in);
  return stream.free + topology_.links.between_hosts.latency_s;
}

// The processors of both ends copy, one neighbour's data after the other's.
double Simulation::copy_inside(Stream& stream, double start, double bytes) {
  Actor& from = actors_[stream.from];
  stream.free = start + bytes * topology_.links.in_host.seconds_per_byte * from.slowness;
  from.copied_out = actors_[stream.to].copied_in = stream.free;
  return stream.free + topology_.links.in_host.latency_s;
}

double Simulation::pass_cables(Stream& stream, double start, double bytes) {
  const Actor& from = actors_[stream.from];
  const Actor& to = actors_[stream.to];
  const double slowness = std::max(from.slowness, to.slowness);
  double slowest = 0;
  double latency = 0;
  for (const std::size_t i : ways_.between(from.host, to.host)) {
    const Cable& cable = topology_.links.cables[i];
    cable_free_[i] = start + bytes * cable.seconds_per_byte * slowness;
    slowest = std::max(slowest, cable.seconds_per_byte);
    latency += cable.latency_s;
  }
  stream.free = start + bytes * slowest * slowness;
  return stream.free + latency;
}

}  // namespace ringcore::plan
