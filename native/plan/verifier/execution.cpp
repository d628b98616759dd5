#include "plan/verifier/execution.hpp"

#include <algorithm>
#include <utility>

#include "plan/verifier/flaw.hpp"

namespace ringcore::plan {
namespace {

std::size_t widest(const Excerpt& plan) {
  std::size_t width = 1;
  for (const Program& program : plan.programs) width = std::max(width, program.channels.size());
  return width;
}

}  // namespace

Execution::Execution(const Excerpt& plan)
    : plan_(plan),
      symmetry_(plan.symmetry),
      orbits_(symmetry_.orbits()),
      width_(widest(plan)),
      order_(plan, width_, static_cast<std::size_t>(orbits_) * cells_of_rank()),
      next_(static_cast<std::size_t>(orbits_) * width_, 0),
      limits_(next_.size(), 0),
      cells_(static_cast<std::size_t>(orbits_) * cells_of_rank()),
      streams_(plan),
      waiting_(static_cast<std::size_t>(orbits_), 0) {
  prepare();
}

void Execution::run() {
  const std::size_t segments = std::max<std::size_t>(1, plan_.programs[0].segment_ends.size());
  for (std::size_t segment = 0; segment < segments; ++segment) {
    for (int orbit = 0; orbit < orbits_; ++orbit) {
      for (std::size_t c = 0; c < program(orbit).channels.size(); ++c) {
        limits_[thread(orbit, c)] = end_of_segment(orbit, c, segment);
      }
      wake(orbit);
    }
    go_on();
    check_ended();
  }
  check_result();
  check_memory_released();
  check_rounded_once();
}

// Data, input of an alltoall, scratch.
std::size_t Execution::cells_of_rank() const {
  return std::size_t{plan_.chunks} * (plan_.collective == Collective::kAlltoall ? 2 : 1) + plan_.scratch_chunks;
}

std::size_t Execution::cell_of(int orbit, Buffer buffer, std::uint32_t chunk) const {
  const std::size_t first = static_cast<std::size_t>(orbit) * cells_of_rank();
  switch (buffer) {
    case Buffer::kData: return first + chunk;
    case Buffer::kScratch: return first + plan_.chunks + chunk;
    case Buffer::kInput:
      if (plan_.collective != Collective::kAlltoall) throw Flaw{plan_.generator + ": only an alltoall has an input"};
      return first + plan_.chunks + plan_.scratch_chunks + chunk;
  }
  __builtin_unreachable();
}

Located Execution::locate(const ChunkRef& ref) const {
  const int turn = symmetry_.turn_of(ref.rank);
  const std::uint32_t chunk = symmetry_.turned(plan_, ref.buffer, ref.chunk, symmetry_.inverse(turn));
  return {cell_of(symmetry_.orbit_of(ref.rank), ref.buffer, chunk), turn};
}

void Execution::turn(Value& value, int turn) const {
  if (value.chunk < 0) return;
  value.chunk = static_cast<int>(symmetry_.turned(plan_, Buffer::kData, static_cast<std::uint32_t>(value.chunk), turn));
  value.contributions.turn(symmetry_, turn);
}

void Execution::flaw(int orbit, std::size_t channel, std::string_view what) const {
  flaw_at(plan_, symmetry_.representative(orbit), channel, next_[thread(orbit, channel)], std::string(what));
}

void Execution::heed(int orbit, std::size_t channel, std::string_view complaint) const {
  if (!complaint.empty()) flaw(orbit, channel, complaint);
}

std::size_t Execution::end_of_segment(int orbit, std::size_t channel, std::size_t segment) const {
  const std::vector<std::size_t>& ends = program(orbit).segment_ends;
  return ends.empty() ? program(orbit).channels[channel].size() : ends[segment];
}

// What the buffers hold before.
void Execution::prepare() {
  for (int orbit = 0; orbit < orbits_; ++orbit) {
    const Rank rank = symmetry_.representative(orbit);
    for (std::uint32_t chunk = 0; rank < plan_.ranks && chunk < plan_.chunks; ++chunk) {
      prepare_chunk(orbit, rank, chunk);
    }
    order_.begin(orbit, program(orbit).channels.size());
  }
}

void Execution::prepare_chunk(int orbit, Rank rank, std::uint32_t chunk) {
  const int block = static_cast<int>(chunk) / std::max(1, parts());
  bool defined = true;
  Buffer buffer = Buffer::kData;
  switch (plan_.collective) {
    case Collective::kAllreduce:
    case Collective::kReduce:
    case Collective::kReduceScatter: break;
    case Collective::kGather:
    case Collective::kAllgather: defined = block == rank; break;
    case Collective::kScatter:
    case Collective::kBroadcast: defined = rank == plan_.root; break;
    case Collective::kAlltoall: buffer = Buffer::kInput; break;
    case Collective::kBarrier: throw Flaw{"a barrier needs no plan"};
  }
  const std::size_t cell = cell_of(orbit, buffer, chunk);
  if (defined) cells_[cell].value = {static_cast<int>(chunk), Contributions(symmetry_.seat_of(rank))};
  // Written by the rank itself, just before it starts.
  if (!plan_.inputs_ready) order_.holds_data(orbit, cell);
}

void Execution::wake(int orbit) {
  if (std::exchange(waiting_[orbit], 1) == 0) turn_of_.push_back(orbit);
}

void Execution::go_on() {
  while (!turn_of_.empty()) {
    const int orbit = turn_of_.front();
    turn_of_.pop_front();
    waiting_[orbit] = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t c = 0; c < program(orbit).channels.size(); ++c) {
        while (step(orbit, c)) moved = true;
      }
    }
  }
}

bool Execution::step(int orbit, std::size_t channel) {
  const std::size_t thread = this->thread(orbit, channel);
  const Channel& steps = program(orbit).channels[channel];
  if (next_[thread] >= limits_[thread]) return false;
  const Step& step = steps[next_[thread]];
  if (step.after_channel >= 0) {
    const auto other = static_cast<std::size_t>(step.after_channel);
    if (static_cast<int>(next_[this->thread(orbit, other)]) <= step.after_step) return false;
    order_.follow(orbit, channel, other, static_cast<std::size_t>(step.after_step));
  }
  for (const ChunkRef& target : step.targets) {
    if (target.rank == symmetry_.representative(orbit) && cells_[locate(target).cell].unsent > 0) return false;
  }
  if (!apply(orbit, channel, step)) return false;
  order_.end_step(orbit, channel);
  ++next_[thread];
  return true;
}

bool Execution::apply(int orbit, std::size_t channel, const Step& step) {
  switch (step.kind) {
    case StepKind::kSend:
    case StepKind::kSignal: send(orbit, channel, step); return true;
    case StepKind::kReduce: reduce(orbit, channel, step); return true;
    case StepKind::kRecv:
    case StepKind::kRecvReduce:
    case StepKind::kWait: return receive(orbit, channel, step);
  }
  __builtin_unreachable();
}

void Execution::send(int orbit, std::size_t channel, const Step& step) {
  Queue<Message>& stream = *streams_.sent(orbit, step.peer);
  const Order::Clock clock = order_.sent(orbit, channel);
  if (step.kind == StepKind::kSignal) stream.push({.signal = true, .clock = clock});
  const bool copied = step.sources.size() > 1;
  for (const ChunkRef& source : step.sources) {
    Message message{.value = read(orbit, channel, source), .quantised = step.quantised, .clock = clock};
    if (!copied) {
      message.source = locate(source).cell;
      ++cells_[message.source].unsent;
    }
    message.chunks = &source == step.sources.data() ? step.sources.size() : 0;
    stream.push(std::move(message));
  }
  wake(symmetry_.orbit_of(step.peer));
}

bool Execution::receive(int orbit, std::size_t channel, const Step& step) {
  const int turn = symmetry_.turn_of(step.peer);
  Queue<Message>* const arriving = streams_.received(orbit, step.peer);
  if (arriving == nullptr || arriving->empty()) return false;
  const Message& first = arriving->front();
  if (first.signal != (step.kind == StepKind::kWait)) flaw(orbit, channel, "a signal meets a transfer");
  if (!first.signal && first.chunks != step.targets.size()) flaw(orbit, channel, "the transfer has other chunks");
  if (first.quantised != step.quantised) flaw(orbit, channel, "one side quantises, and the other does not");
  order_.receive(orbit, channel, first.clock, turn);
  if (first.signal) arriving->pop();
  for (const ChunkRef& target : step.targets) receive_chunk(orbit, channel, step, target, arriving->pop());
  return true;
}

void Execution::receive_chunk(int orbit, std::size_t channel, const Step& step, const ChunkRef& target,
                              Message message) {
  if (message.source != kCopied) {
    --cells_[message.source].unsent;
    wake(symmetry_.orbit_of(step.peer));
    order_.take(orbit, channel, message.source, streams_.as_sent(orbit, step.peer));
  }
  turn(message.value, symmetry_.turn_of(step.peer));
  take(orbit, channel, step, target, std::move(message.value));
}

void Execution::take(int orbit, std::size_t channel, const Step& step, const ChunkRef& target, Value value) {
  const std::uint32_t like = step.sources.empty() ? target.chunk : step.sources.front().chunk;
  if (plan_.collective != Collective::kAlltoall && value.chunk != static_cast<int>(like)) {
    flaw(orbit, channel, "the peer sends another chunk");
  }
  if (step.kind == StepKind::kRecvReduce) {
    if (plan_.accumulates_once) flaw(orbit, channel, "it accumulates in several steps");
    Value sum = read(orbit, channel, target);
    add(orbit, channel, sum, value);
    check_final(orbit, channel, step, sum);
    value = std::move(sum);
  } else if (step.final) {
    flaw(orbit, channel, "a receive is marked final");
  }
  write(orbit, channel, target, value);
}

void Execution::reduce(int orbit, std::size_t channel, const Step& step) {
  Value result = read(orbit, channel, step.sources.front());
  for (std::size_t i = 1; i < step.sources.size(); ++i) {
    add(orbit, channel, result, read(orbit, channel, step.sources[i]));
  }
  if (step.sources.size() > 1) {
    check_final(orbit, channel, step, result);
    for (std::size_t i = 0; plan_.accumulates_once && i < step.sources.size(); ++i) {
      if (step.sources.size() != static_cast<std::size_t>(plan_.ranks) ||
          !holds_only(locate(step.sources[i]), static_cast<Rank>(i))) {
        flaw(orbit, channel, "it does not add all ranks in their order at once");
      }
    }
  } else if (step.final) {
    flaw(orbit, channel, "a copy is marked final");
  }
  for (const ChunkRef& target : step.targets) {
    if (target.buffer == Buffer::kData && plan_.collective != Collective::kAlltoall &&
        static_cast<int>(target.chunk) != result.chunk) {
      flaw(orbit, channel, "it writes a chunk to another place");
    }
    write(orbit, channel, target, result);
  }
}

bool Execution::holds_only(const Located& at, Rank rank) const {
  const Rank as_there = symmetry_.turned(rank, symmetry_.inverse(at.turn));
  return cells_[at.cell].value.contributions.only(symmetry_.seat_of(as_there));
}

void Execution::add(int orbit, std::size_t channel, Value& sum, const Value& other) const {
  if (!reduces(plan_.collective)) {
    flaw(orbit, channel, "it reduces in a collective that does not");
  }
  if (sum.chunk != other.chunk) flaw(orbit, channel, "it adds different chunks");
  if (const auto twice = sum.contributions.add(other.contributions)) {
    const int first = *twice / symmetry_.turns();
    const Rank rank = symmetry_.turned(symmetry_.representative(first), *twice % symmetry_.turns());
    flaw(orbit, channel, "the contribution of rank " + std::to_string(rank) + " is added twice");
  }
}

void Execution::check_final(int orbit, std::size_t channel, const Step& step, const Value& sum) {
  if (step.final != complete(sum)) {
    flaw(orbit, channel, step.final ? "an incomplete sum is marked final" : "a complete sum is not marked final");
  }
  if (step.final) completed_ += static_cast<std::size_t>(symmetry_.turns());
}

Execution::Value Execution::read(int orbit, std::size_t channel, const ChunkRef& ref) {
  const Located at = locate(ref);
  Value value = cells_[at.cell].value;
  if (value.chunk < 0) flaw(orbit, channel, "it reads a chunk that holds nothing");
  turn(value, at.turn);
  heed(orbit, channel, order_.read(orbit, channel, at));
  return value;
}

void Execution::write(int orbit, std::size_t channel, const ChunkRef& ref, Value value) {
  const Located at = locate(ref);
  turn(value, symmetry_.inverse(at.turn));
  cells_[at.cell].value = std::move(value);
  const bool of_another = ref.rank != symmetry_.representative(orbit);
  heed(orbit, channel, order_.write(orbit, channel, at, of_another, cells_[at.cell].unsent));
}

void Execution::check_ended() const {
  for (int orbit = 0; orbit < orbits_; ++orbit) {
    for (std::size_t c = 0; c < program(orbit).channels.size(); ++c) {
      if (next_[thread(orbit, c)] < limits_[thread(orbit, c)]) flaw(orbit, c, "it waits for ever");
    }
  }
  for (const Queue<Message>& stream : streams_) {
    if (!stream.empty()) throw Flaw{plan_.generator + ": something is sent that nobody receives"};
  }
}

void Execution::check_result() const {
  for (int orbit = 0; orbit < orbits_; ++orbit) {
    const Rank rank = symmetry_.representative(orbit);
    for (std::uint32_t chunk = 0; rank < plan_.ranks && chunk < plan_.chunks; ++chunk) {
      if (!right(rank, static_cast<int>(chunk), cells_[cell_of(orbit, Buffer::kData, chunk)].value)) {
        throw Flaw{plan_.generator + ": rank " + std::to_string(rank) + " ends with a wrong chunk " +
                   std::to_string(chunk)};
      }
    }
  }
}

bool Execution::right(Rank rank, int chunk, const Value& value) const {
  const int block = chunk / std::max(1, parts());
  const bool same = value.chunk == chunk;
  const auto only = [&](Rank from) { return value.contributions.only(symmetry_.seat_of(from)); };
  switch (plan_.collective) {
    case Collective::kAllreduce: return same && complete(value);
    case Collective::kReduce: return rank != plan_.root || (same && complete(value));
    case Collective::kReduceScatter: return block != rank || (same && complete(value));
    case Collective::kAllgather: return same && only(block);
    case Collective::kGather: return rank != plan_.root || (same && only(block));
    case Collective::kScatter: return block != rank || (same && only(plan_.root));
    case Collective::kBroadcast: return same && only(plan_.root);
    case Collective::kAlltoall:
      if (block == rank && value.chunk < 0) return true;
      return value.chunk == rank * parts() + chunk % parts() && only(block);
    case Collective::kBarrier: return true;
  }
  __builtin_unreachable();
}

// Sums are rounded where they are complete. Each is somewhere, and there are as many as chunks: each on one rank.
void Execution::check_rounded_once() const {
  if (plan_.compression == Compression::kNone || completed_ == plan_.chunks) return;
  throw Flaw{plan_.generator + ": with a compression " + std::to_string(plan_.chunks) + " sums are completed " +
             std::to_string(completed_) + " times, and ranks would have different bits"};
}

// A rank that has ended may reuse its memory: nobody else may touch it any more.
void Execution::check_memory_released() const {
  for (int orbit = 0; plan_.one_sided && orbit < orbits_; ++orbit) {
    check_released(orbit, Buffer::kData);
    if (plan_.collective == Collective::kAlltoall) check_released(orbit, Buffer::kInput);
  }
}

void Execution::check_released(int orbit, Buffer buffer) const {
  const std::size_t first = cell_of(orbit, buffer, 0);
  const std::size_t chunk = order_.still_in_use(orbit, program(orbit).channels.size(), first, plan_.chunks);
  if (chunk == plan_.chunks) return;
  throw Flaw{plan_.generator + ": rank " + std::to_string(symmetry_.representative(orbit)) + " ends while chunk " +
             std::to_string(chunk) + " of its memory is in use"};
}

}  // namespace ringcore::plan
