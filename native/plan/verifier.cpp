#include "plan/verifier.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/contributions.hpp"
#include "plan/streams.hpp"

namespace ringcore::plan {
namespace {

// By thread; a thread is one channel of one rank. Only where memory is touched by several threads are there clocks: of
// the channels of a rank; of all threads when ranks touch each other's memory.
using Clock = std::vector<std::uint32_t>;

// What a chunk holds: whose contributions to which chunk of the result.
struct Value {
  int chunk = -1;  // -1: undefined
  Contributions contributions;
};

// One chunk of a representative's memory, and how many transfers of it their receivers have not taken.
struct Cell {
  Value value;
  int unsent = 0;
};

// Who touched a cell since it was last written.
struct Touched {
  int writer = -1;  // thread; -1: nobody yet
  std::uint32_t written_at = 0;
  std::map<int, std::uint32_t> readers;  // thread -> its clock
  std::map<int, std::uint32_t> taken;    // thread that has received a transfer of it -> its clock then
};

struct Message {
  Value value;
  bool signal = false;
  Clock clock;
  std::size_t source = 0;  // cell
};

// Thrown inside, returned by `verify`.
struct Flaw {
  std::string text;
};

[[noreturn]] void flaw_at(const Header& header, Rank rank, int channel, std::size_t step, const std::string& what) {
  throw Flaw{header.generator + ": rank " + std::to_string(rank) + ", channel " + std::to_string(channel) + ", step " +
             std::to_string(step) + ": " + what};
}

// Indices in range, operands of the right number, one channel for each ordered pair of ranks.
class Shape {
 public:
  Shape(const Header& header, const Topology& topology, Rank rank, const Program& program)
      : header_(header), topology_(topology), rank_(rank), program_(program) {}

  void check() {
    const std::vector<Channel>& channels = program_.channels;
    for (channel_ = 0; channel_ < channels.size(); ++channel_) {
      for (step_ = 0; step_ < channels[channel_].size(); ++step_) check_step(channels[channel_][step_]);
    }
    check_segments();
  }

 private:
  [[noreturn]] void flaw(const std::string& what) const {
    flaw_at(header_, rank_, static_cast<int>(channel_), step_, what);
  }

  void check_segments() const {
    const std::vector<std::size_t>& ends = program_.segment_ends;
    if (ends.empty()) return;
    if (program_.channels.size() != 1 || !std::is_sorted(ends.begin(), ends.end()) ||
        ends.back() != program_.channels[0].size()) {
      throw Flaw{header_.generator + ": rank " + std::to_string(rank_) + ": its segments are not its program"};
    }
  }

  void check_step(const Step& step) {
    for (const auto* refs : {&step.sources, &step.targets}) {
      for (const ChunkRef& ref : *refs) check_ref(step, ref);
    }
    const bool has_peer = step.kind != StepKind::kReduce;
    if (has_peer && (step.peer < 0 || step.peer >= header_.nodes || step.peer == rank_)) flaw("no such peer");
    if (step.after_channel >= static_cast<int>(program_.channels.size())) flaw("no such channel");
    if (step.after_channel >= 0 && step.after_step < 0) flaw("no such step");
    switch (step.kind) {
      case StepKind::kSend: operands(step, 1, 0); return same_channel(sends_in_, step.peer);
      case StepKind::kSignal: operands(step, 0, 0); return same_channel(sends_in_, step.peer);
      case StepKind::kWait: operands(step, 0, 0); return same_channel(receives_in_, step.peer);
      case StepKind::kRecv:
        operands(step, !step.targets.empty() && step.targets.front().buffer == Buffer::kScratch ? 1 : 0, 1);
        return same_channel(receives_in_, step.peer);
      case StepKind::kRecvReduce: operands(step, 0, 1); return same_channel(receives_in_, step.peer);
      case StepKind::kReduce:
        if (step.sources.empty() || step.targets.empty()) flaw("wrong operands");
        return;
    }
  }

  void check_ref(const Step& step, const ChunkRef& ref) const {
    const std::uint32_t limit = ref.buffer == Buffer::kScratch ? header_.scratch_chunks : header_.chunks;
    if (ref.rank < 0 || ref.rank >= header_.nodes || ref.chunk >= limit) flaw("a chunk does not exist");
    if (ref.rank == rank_) return;
    if (!header_.one_sided || ref.buffer != Buffer::kData || step.kind != StepKind::kReduce ||
        topology_.host_of[ref.rank] != topology_.host_of[rank_] || !topology_.memory_shared_in_host) {
      flaw("it names memory that it cannot see");
    }
  }

  void operands(const Step& step, std::size_t sources, std::size_t targets) const {
    if (step.sources.size() != sources || step.targets.size() != targets) flaw("wrong operands");
  }

  void same_channel(std::unordered_map<Rank, std::size_t>& known, Rank peer) const {
    const auto [found, fresh] = known.emplace(peer, channel_);
    if (!fresh && found->second != channel_) flaw("the stream of a pair of ranks is used by two channels");
  }

  const Header& header_;
  const Topology& topology_;
  Rank rank_;
  const Program& program_;
  std::size_t channel_ = 0;
  std::size_t step_ = 0;
  std::unordered_map<Rank, std::size_t> sends_in_;
  std::unordered_map<Rank, std::size_t> receives_in_;
};

// Every representative stands for its orbit: a step of it is that step of all, turned. What it has sent to a rank is, turned,
// what another rank has sent to it. Cells, messages and clocks are kept as the representative sees them; who looks at
// those of another rank turns them.
class Execution {
 public:
  Execution(const Excerpt& plan, const Topology& topology)
      : plan_(plan), topology_(topology), symmetry_(plan.symmetry), orbits_(symmetry_.orbits()) {
    check_shape();
    streams_.emplace(plan);
    for (const Program& program : plan.programs) width_ = std::max(width_, program.channels.size());
    tracks_ = plan.one_sided || width_ > 1;
    clock_size_ = !tracks_ ? 0 : plan.one_sided ? static_cast<std::size_t>(plan.nodes) * width_ : width_;
    const std::size_t threads = static_cast<std::size_t>(orbits_) * width_;
    clocks_.assign(threads, Clock(clock_size_, 0));
    next_.assign(threads, 0);
    limits_.assign(threads, 0);
    finished_at_.resize(threads);
    cells_.resize(static_cast<std::size_t>(orbits_) * cells_of_rank());
    if (tracks_) touched_.resize(cells_.size());
    prepare();
  }

  void run() {
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
  }

 private:
  struct Located {
    std::size_t cell = 0;
    int turn = 0;  // from its representative
  };

  const Program& program(int orbit) const { return plan_.programs[orbit]; }
  int parts() const { return static_cast<int>(plan_.chunks) / plan_.ranks; }
  std::size_t thread(int orbit, std::size_t channel) const {
    return static_cast<std::size_t>(orbit) * width_ + channel;
  }
  // Data, input of an alltoall, scratch.
  std::size_t cells_of_rank() const {
    return std::size_t{plan_.chunks} * (plan_.collective == Collective::kAlltoall ? 2 : 1) + plan_.scratch_chunks;
  }

  std::size_t cell_of(int orbit, Buffer buffer, std::uint32_t chunk) const {
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

  Located locate(const ChunkRef& ref) const {
    const int turn = symmetry_.turn_of(ref.rank);
    const std::uint32_t chunk = symmetry_.turned(plan_, ref.buffer, ref.chunk, symmetry_.inverse(turn));
    return {cell_of(symmetry_.orbit_of(ref.rank), ref.buffer, chunk), turn};
  }

  void turn(Value& value, int turn) const {
    if (value.chunk < 0) return;
    value.chunk =
        static_cast<int>(symmetry_.turned(plan_, Buffer::kData, static_cast<std::uint32_t>(value.chunk), turn));
    value.contributions.turn(symmetry_, turn);
  }

  bool complete(const Value& value) const { return value.contributions.count() == plan_.ranks; }

  // The number of a thread as `rank` turned has it: the seat where it sits then, and its channel.
  int thread_of(Rank rank, int channel, int turn) const {
    if (!plan_.one_sided) return channel;
    return symmetry_.seat_of(symmetry_.turned(rank, turn)) * static_cast<int>(width_) + channel;
  }
  int turned_thread(int thread, int turn) const {
    if (!plan_.one_sided || turn == 0) return thread;
    const int width = static_cast<int>(width_);
    const int seat = thread / width;
    const int first = seat / symmetry_.turns() * symmetry_.turns();
    return (first + symmetry_.sum(seat - first, turn)) * width + thread % width;
  }

  [[noreturn]] void flaw(int orbit, int channel, const std::string& what) const {
    flaw_at(plan_, symmetry_.representative(orbit), channel, next_[thread(orbit, channel)], what);
  }

  void check_shape() const {
    if (plan_.ranks < 2 || static_cast<int>(plan_.programs.size()) != orbits_ || topology_.nodes() != plan_.nodes ||
        topology_.ranks() != plan_.ranks) {
      throw Flaw{plan_.generator + ": it does not have a program for each rank"};
    }
    if (!symmetry_.fits(plan_)) throw Flaw{plan_.generator + ": its chunks cannot be turned with its ranks"};
    for (int orbit = 0; orbit < orbits_; ++orbit) {
      Shape(plan_, topology_, symmetry_.representative(orbit), program(orbit)).check();
      if (program(orbit).segment_ends.size() != program(0).segment_ends.size()) {
        throw Flaw{plan_.generator + ": its ranks have different segments"};
      }
    }
  }

  std::size_t end_of_segment(int orbit, std::size_t channel, std::size_t segment) const {
    const std::vector<std::size_t>& ends = program(orbit).segment_ends;
    return ends.empty() ? program(orbit).channels[channel].size() : ends[segment];
  }

  // What the buffers hold before.
  void prepare() {
    for (int orbit = 0; orbit < orbits_; ++orbit) {
      const Rank rank = symmetry_.representative(orbit);
      for (std::uint32_t chunk = 0; rank < plan_.ranks && chunk < plan_.chunks; ++chunk) {
        prepare_chunk(orbit, rank, chunk);
      }
      if (!tracks_) continue;
      for (std::size_t c = 0; c < program(orbit).channels.size(); ++c) {
        Clock& clock = clocks_[thread(orbit, c)];
        clock[thread_of(rank, static_cast<int>(c), 0)] = 1;
        clock[thread_of(rank, 0, 0)] = 1;  // all of a rank's channels start after its data are there
      }
    }
  }

  void prepare_chunk(int orbit, Rank rank, std::uint32_t chunk) {
    const int block = static_cast<int>(chunk) / std::max(1, parts());
    bool defined = true;
    Buffer buffer = Buffer::kData;
    switch (plan_.collective) {
      case Collective::kAllreduce:
      case Collective::kReduceScatter: break;
      case Collective::kAllgather: defined = block == rank; break;
      case Collective::kBroadcast: defined = rank == plan_.root; break;
      case Collective::kAlltoall: buffer = Buffer::kInput; break;
      case Collective::kBarrier: throw Flaw{"a barrier needs no plan"};
    }
    const std::size_t cell = cell_of(orbit, buffer, chunk);
    if (defined) cells_[cell].value = {static_cast<int>(chunk), Contributions(symmetry_.seat_of(rank))};
    if (tracks_ && !plan_.inputs_ready) {
      // Written by the rank itself, just before it starts.
      touched_[cell].writer = thread_of(rank, 0, 0);
      touched_[cell].written_at = 1;
    }
  }

  void wake(int orbit) {
    if (waiting_.size() != static_cast<std::size_t>(orbits_)) waiting_.assign(orbits_, 0);
    if (std::exchange(waiting_[orbit], 1) == 0) turn_of_.push_back(orbit);
  }

  void go_on() {
    while (!turn_of_.empty()) {
      const int orbit = turn_of_.front();
      turn_of_.pop_front();
      waiting_[orbit] = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t c = 0; c < program(orbit).channels.size(); ++c) {
          while (step(orbit, static_cast<int>(c))) moved = true;
        }
      }
    }
  }

  bool step(int orbit, int channel) {
    const std::size_t thread = this->thread(orbit, channel);
    const Channel& steps = program(orbit).channels[channel];
    if (next_[thread] >= limits_[thread]) return false;
    const Step& step = steps[next_[thread]];
    if (step.after_channel >= 0) {
      const std::size_t other = this->thread(orbit, step.after_channel);
      if (static_cast<int>(next_[other]) <= step.after_step) return false;
      if (width_ > 1) merge(clocks_[thread], finished_at_[other][static_cast<std::size_t>(step.after_step)], 0);
    }
    for (const ChunkRef& target : step.targets) {
      if (target.rank == symmetry_.representative(orbit) && cells_[locate(target).cell].unsent > 0) return false;
    }
    if (!apply(orbit, channel, step)) return false;
    if (width_ > 1) finished_at_[thread].push_back(clocks_[thread]);
    if (tracks_) ++clocks_[thread][own_thread(orbit, channel)];
    ++next_[thread];
    return true;
  }

  int own_thread(int orbit, int channel) const { return thread_of(symmetry_.representative(orbit), channel, 0); }

  void merge(Clock& into, const Clock& other, int turn) const {
    for (std::size_t i = 0; i < other.size(); ++i) {
      std::uint32_t& entry = into[turned_thread(static_cast<int>(i), turn)];
      entry = std::max(entry, other[i]);
    }
  }

  bool apply(int orbit, int channel, const Step& step) {
    Clock& clock = clocks_[thread(orbit, channel)];
    if (step.kind == StepKind::kSend || step.kind == StepKind::kSignal) {
      Message message{.signal = step.kind == StepKind::kSignal};
      if (plan_.one_sided) message.clock = clock;
      if (!message.signal) {
        message.value = read(orbit, channel, step.sources.front());
        message.source = locate(step.sources.front()).cell;
        ++cells_[message.source].unsent;
      }
      streams_->sent(orbit, step.peer)->push(std::move(message));
      wake(symmetry_.orbit_of(step.peer));
      return true;
    }
    if (step.kind == StepKind::kReduce) {
      reduce(orbit, channel, step);
      return true;
    }
    return receive(orbit, channel, step);
  }

  bool receive(int orbit, int channel, const Step& step) {
    const int sender = symmetry_.orbit_of(step.peer);
    const int turn = symmetry_.turn_of(step.peer);
    Queue<Message>* const arriving = streams_->received(orbit, step.peer);
    if (arriving == nullptr || arriving->empty()) return false;
    Message message = arriving->pop();
    if (message.signal != (step.kind == StepKind::kWait)) flaw(orbit, channel, "a signal meets a transfer");
    Clock& clock = clocks_[thread(orbit, channel)];
    merge(clock, message.clock, turn);
    if (message.signal) return true;
    --cells_[message.source].unsent;
    wake(sender);
    if (tracks_) {
      const int receiver = thread_of(streams_->as_sent(orbit, step.peer), channel, 0);
      touched_[message.source].taken[receiver] = clock[own_thread(orbit, channel)];
    }
    this->turn(message.value, turn);
    take(orbit, channel, step, std::move(message.value));
    return true;
  }

  void take(int orbit, int channel, const Step& step, Value value) {
    const ChunkRef& target = step.targets.front();
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

  void reduce(int orbit, int channel, const Step& step) {
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

  bool holds_only(const Located& at, Rank rank) const {
    const Rank as_there = symmetry_.turned(rank, symmetry_.inverse(at.turn));
    return cells_[at.cell].value.contributions.only(symmetry_.seat_of(as_there));
  }

  void add(int orbit, int channel, Value& sum, const Value& other) const {
    if (plan_.collective != Collective::kAllreduce && plan_.collective != Collective::kReduceScatter) {
      flaw(orbit, channel, "it reduces in a collective that does not");
    }
    if (sum.chunk != other.chunk) flaw(orbit, channel, "it adds different chunks");
    if (const auto twice = sum.contributions.add(other.contributions)) {
      const int first = *twice / symmetry_.turns();
      const Rank rank = symmetry_.turned(symmetry_.representative(first), *twice % symmetry_.turns());
      flaw(orbit, channel, "the contribution of rank " + std::to_string(rank) + " is added twice");
    }
  }

  void check_final(int orbit, int channel, const Step& step, const Value& sum) const {
    if (step.final != complete(sum)) {
      flaw(orbit, channel, step.final ? "an incomplete sum is marked final" : "a complete sum is not marked final");
    }
  }

  Value read(int orbit, int channel, const ChunkRef& ref) {
    const Located at = locate(ref);
    Value value = cells_[at.cell].value;
    if (value.chunk < 0) flaw(orbit, channel, "it reads a chunk that holds nothing");
    turn(value, at.turn);
    if (!tracks_) return value;
    const Clock& clock = clocks_[thread(orbit, channel)];
    Touched& touched = touched_[at.cell];
    if (touched.writer >= 0 && clock[turned_thread(touched.writer, at.turn)] < touched.written_at) {
      flaw(orbit, channel, "it reads memory that may still be written");
    }
    touched.readers[thread_as_seen(orbit, channel, at)] = clock[own_thread(orbit, channel)];
    return value;
  }

  // This thread as the representative of the cell's rank sees it.
  int thread_as_seen(int orbit, int channel, const Located& at) const {
    return thread_of(symmetry_.representative(orbit), channel, symmetry_.inverse(at.turn));
  }

  void write(int orbit, int channel, const ChunkRef& ref, Value value) {
    const Located at = locate(ref);
    turn(value, symmetry_.inverse(at.turn));
    cells_[at.cell].value = std::move(value);
    if (!tracks_) return;
    Touched& touched = touched_[at.cell];
    const Clock& clock = clocks_[thread(orbit, channel)];
    if (touched.writer >= 0 && clock[turned_thread(touched.writer, at.turn)] < touched.written_at) {
      flaw(orbit, channel, "it writes memory that may still be written");
    }
    for (const auto& [reader, time] : touched.readers) {
      if (clock[turned_thread(reader, at.turn)] < time) {
        flaw(orbit, channel, "it writes memory that may still be read");
      }
    }
    if (ref.rank != symmetry_.representative(orbit)) check_sent(orbit, channel, clock, at);
    touched.taken.clear();
    touched.writer = thread_as_seen(orbit, channel, at);
    touched.written_at = clock[own_thread(orbit, channel)];
    touched.readers.clear();
  }

  // A posted transfer reads its chunk later, when the link takes it, and nothing tells other ranks of that but its arrival.
  // The chunk's own rank waits for it by itself.
  void check_sent(int orbit, int channel, const Clock& clock, const Located& at) const {
    bool sent = cells_[at.cell].unsent == 0;
    for (const auto& [receiver, time] : touched_[at.cell].taken) {
      sent = sent && clock[turned_thread(receiver, at.turn)] >= time;
    }
    if (!sent) flaw(orbit, channel, "it writes another rank's memory that may still have to be sent");
  }

  void check_ended() const {
    for (int orbit = 0; orbit < orbits_; ++orbit) {
      for (std::size_t c = 0; c < program(orbit).channels.size(); ++c) {
        if (next_[thread(orbit, c)] < limits_[thread(orbit, c)]) flaw(orbit, static_cast<int>(c), "it waits for ever");
      }
    }
    for (const Queue<Message>& stream : *streams_) {
      if (!stream.empty()) throw Flaw{plan_.generator + ": something is sent that nobody receives"};
    }
  }

  void check_result() const {
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

  bool right(Rank rank, int chunk, const Value& value) const {
    const int block = chunk / std::max(1, parts());
    const bool same = value.chunk == chunk;
    const auto only = [&](Rank from) { return value.contributions.only(symmetry_.seat_of(from)); };
    switch (plan_.collective) {
      case Collective::kAllreduce: return same && complete(value);
      case Collective::kReduceScatter: return block != rank || (same && complete(value));
      case Collective::kAllgather: return same && only(block);
      case Collective::kBroadcast: return same && only(plan_.root);
      case Collective::kAlltoall: return value.chunk == rank * parts() + chunk % parts() && only(block);
      case Collective::kBarrier: return true;
    }
    __builtin_unreachable();
  }

  // A rank that has ended may reuse its memory: nobody else may touch it any more.
  void check_memory_released() const {
    for (int orbit = 0; plan_.one_sided && orbit < orbits_; ++orbit) {
      Clock end(clock_size_, 0);
      for (std::size_t c = 0; c < program(orbit).channels.size(); ++c) merge(end, clocks_[thread(orbit, c)], 0);
      for (std::uint32_t chunk = 0; chunk < plan_.chunks; ++chunk) {
        const Touched& last = touched_[cell_of(orbit, Buffer::kData, chunk)];
        bool released = last.writer < 0 || end[last.writer] >= last.written_at;
        for (const auto& [reader, time] : last.readers) released = released && end[reader] >= time;
        if (!released) {
          throw Flaw{plan_.generator + ": rank " + std::to_string(symmetry_.representative(orbit)) +
                     " ends while chunk " + std::to_string(chunk) + " of its memory is in use"};
        }
      }
    }
  }

  const Excerpt& plan_;
  const Topology& topology_;
  const Symmetry& symmetry_;
  int orbits_;
  std::size_t width_ = 1;  // channels, of the representative that has most
  bool tracks_ = false;
  std::size_t clock_size_ = 0;
  std::vector<Clock> clocks_;
  std::vector<std::vector<Clock>> finished_at_;  // by thread and step
  std::vector<std::size_t> next_;
  std::vector<std::size_t> limits_;  // where the segment ends
  std::vector<Cell> cells_;
  std::vector<Touched> touched_;
  std::optional<Streams<Queue<Message>>> streams_;
  std::deque<int> turn_of_;  // orbits that may have something to do
  std::vector<char> waiting_;  // which of them
};

// The program of `parts` parts that the segments of one part claim.
Program repeated(const Program& program, std::uint32_t parts) {
  if (program.segment_ends.empty()) return program;
  Program result{.channels = std::vector<Channel>(1)};
  Channel& steps = result.channels[0];
  std::size_t begin = 0;
  for (const std::size_t end : program.segment_ends) {
    for (std::uint32_t part = 0; part < parts; ++part) {
      for (std::size_t i = begin; i < end; ++i) {
        Step step = program.channels[0][i];
        for (auto* refs : {&step.sources, &step.targets}) {
          for (ChunkRef& ref : *refs) ref.chunk = ref.chunk * parts + part;
        }
        steps.push_back(std::move(step));
      }
    }
    result.segment_ends.push_back(steps.size());
    begin = end;
  }
  return result;
}

bool same(const Step& a, const Step& b, bool in_order) {
  if (in_order || a.sources.size() == 1) return a == b;
  Step sorted[2] = {a, b};
  for (Step& step : sorted) {
    std::sort(step.sources.begin(), step.sources.end(), [](const ChunkRef& x, const ChunkRef& y) {
      return std::tie(x.rank, x.buffer, x.chunk) < std::tie(y.rank, y.buffer, y.chunk);
    });
  }
  return sorted[0] == sorted[1];
}

}  // namespace

std::optional<std::string> verify(const Excerpt& excerpt, const Topology& topology) {
  try {
    Execution(excerpt, topology).run();
    return std::nullopt;
  } catch (const Flaw& flaw) {
    return flaw.text;
  }
}

std::optional<std::string> verify_part(const Plan& plan, const Excerpt& excerpt) {
  const auto wrong = [&](const std::string& what) {
    return plan.generator + ": rank " + std::to_string(plan.self) + ": " + what;
  };
  Header header = excerpt;
  const std::uint32_t parts = excerpt.chunks == 0 ? 0 : plan.chunks / excerpt.chunks;
  if (!excerpt.programs.empty() && !excerpt.programs[0].segment_ends.empty()) {
    header.chunks *= parts;
    header.scratch_chunks *= parts;
  }
  if (header != static_cast<const Header&>(plan)) return wrong("its plan is another than that of the others");
  const Symmetry& symmetry = excerpt.symmetry;
  const Program& representative = excerpt.programs[symmetry.orbit_of(plan.self)];
  const Program expected = repeated(symmetry.turned(excerpt, representative, symmetry.turn_of(plan.self)), parts);
  if (expected.segment_ends != plan.program.segment_ends || expected.channels.size() != plan.program.channels.size()) {
    return wrong("it is not divided as its generator claims");
  }
  for (std::size_t c = 0; c < expected.channels.size(); ++c) {
    const Channel& own = plan.program.channels[c];
    const Channel& claimed = expected.channels[c];
    const auto as_claimed = [&](const Step& a, const Step& b) { return same(a, b, plan.accumulates_once); };
    if (!std::equal(own.begin(), own.end(), claimed.begin(), claimed.end(), as_claimed)) {
      return wrong("channel " + std::to_string(c) + " is not the image that its generator claims");
    }
  }
  return std::nullopt;
}

PlanRequest request_of_proof(const Plan& plan, const PlanRequest& request) {
  PlanRequest one = request;
  if (!plan.program.segment_ends.empty()) one.parts = 1;
  return one;
}

std::optional<std::string> verify(const Plan& plan, const Generator& generator, const PlanRequest& request) {
  const PlanRequest proven = request_of_proof(plan, request);
  const auto claimed = excerpt(generator, proven, generator.symmetry(proven), kMostSteps);
  if (!claimed) return plan.generator + ": too many ranks have programs of their own to be verified";
  if (auto flaw = verify(*claimed, *request.topology)) return flaw;
  return verify_part(plan, *claimed);
}

}  // namespace ringcore::plan
