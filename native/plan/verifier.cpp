#include "plan/verifier.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace ringcore::plan {
namespace {

using Clock = std::vector<std::uint32_t>;  // by thread; a thread is one channel of one rank

void merge(Clock& into, const Clock& other) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

// What a chunk holds: whose contributions to which chunk of the result.
struct Value {
  int chunk = -1;                    // -1: undefined
  std::vector<std::uint8_t> counts;  // by rank
  bool complete() const {
    return std::all_of(counts.begin(), counts.end(), [](std::uint8_t count) { return count == 1; });
  }
  bool only(Rank rank) const {
    for (std::size_t r = 0; r < counts.size(); ++r) {
      if (counts[r] != (static_cast<Rank>(r) == rank ? 1 : 0)) return false;
    }
    return true;
  }
};

// One chunk of one rank's memory: its value, and who touched it since it was last written.
struct Cell {
  Value value;
  int writer = -1;  // thread; -1: nobody yet
  std::uint32_t written_at = 0;
  std::map<int, std::uint32_t> readers;  // thread -> its clock
  int unsent = 0;                        // transfers of it that their receivers have not taken
  std::map<int, std::uint32_t> taken;    // thread that has received it -> its clock then
};

struct Message {
  Value value;
  bool signal = false;
  Clock clock;
  Cell* source = nullptr;
};

// Thrown inside, returned by `verify`.
struct Flaw {
  std::string text;
};

class Execution {
 public:
  Execution(const Plan& plan, const Topology& topology) : plan_(plan), topology_(topology) {
    check_shape();
    for (Rank rank = 0; rank < plan.ranks; ++rank) {
      first_thread_.push_back(thread_count_);
      thread_count_ += static_cast<int>(program(rank).channels.size());
    }
    clocks_.assign(thread_count_, Clock(thread_count_, 0));
    next_.assign(thread_count_, 0);
    finished_at_.resize(thread_count_);
    cells_.resize(static_cast<std::size_t>(plan.ranks) * kBuffers * width());
    queues_.resize(static_cast<std::size_t>(plan.ranks) * plan.ranks);
    for (int t = 0; t < thread_count_; ++t) clocks_[t][t] = 1;
    prepare();
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank rank = 0; rank < plan_.ranks; ++rank) {
        for (std::size_t c = 0; c < program(rank).channels.size(); ++c) {
          while (step(rank, static_cast<int>(c))) moved = true;
        }
      }
    }
    check_ended();
    check_result();
    check_memory_released();
  }

 private:
  static constexpr std::size_t kBuffers = 3;

  const Program& program(Rank rank) const { return plan_.programs[rank]; }
  std::size_t width() const { return std::max(plan_.chunks, plan_.scratch_chunks); }
  int parts() const { return static_cast<int>(plan_.chunks) / plan_.ranks; }
  Cell& cell(const ChunkRef& ref) {
    return cells_[(static_cast<std::size_t>(ref.rank) * kBuffers + static_cast<std::size_t>(ref.buffer)) * width() +
                  ref.chunk];
  }
  std::deque<Message>& queue(Rank from, Rank to) { return queues_[static_cast<std::size_t>(from) * plan_.ranks + to]; }

  [[noreturn]] void flaw(Rank rank, int channel, const std::string& what) const {
    throw Flaw{plan_.generator + ": rank " + std::to_string(rank) + ", channel " + std::to_string(channel) + ", step " +
               std::to_string(next_.empty() ? 0 : next_[first_thread_[rank] + channel]) + ": " + what};
  }

  // Indices in range, operands of the right number, one channel for each ordered pair of ranks.
  void check_shape() const {
    if (plan_.ranks < 2 || static_cast<int>(plan_.programs.size()) != plan_.ranks || topology_.ranks() != plan_.ranks) {
      throw Flaw{plan_.generator + ": it does not have a program for each rank"};
    }
    std::map<std::pair<Rank, Rank>, int> sends_in;
    std::map<std::pair<Rank, Rank>, int> receives_in;
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      for (std::size_t c = 0; c < program(rank).channels.size(); ++c) {
        for (const Step& step : program(rank).channels[c])
          check_step(rank, static_cast<int>(c), step, sends_in, receives_in);
      }
    }
  }

  void check_step(Rank rank, int channel, const Step& step, std::map<std::pair<Rank, Rank>, int>& sends_in,
                  std::map<std::pair<Rank, Rank>, int>& receives_in) const {
    const auto same_channel = [&](auto& known, std::pair<Rank, Rank> pair) {
      const auto [found, fresh] = known.emplace(pair, channel);
      if (!fresh && found->second != channel)
        flaw(rank, channel, "the stream of a pair of ranks is used by two channels");
    };
    for (const auto* refs : {&step.sources, &step.targets}) {
      for (const ChunkRef& ref : *refs) {
        const std::uint32_t limit = ref.buffer == Buffer::kScratch ? plan_.scratch_chunks : plan_.chunks;
        if (ref.rank < 0 || ref.rank >= plan_.ranks || ref.chunk >= limit)
          flaw(rank, channel, "a chunk does not exist");
        if (ref.rank == rank) continue;
        if (!plan_.one_sided || ref.buffer != Buffer::kData || step.kind != StepKind::kReduce ||
            topology_.host_of[ref.rank] != topology_.host_of[rank] || !topology_.memory_shared_in_host) {
          flaw(rank, channel, "it names memory that it cannot see");
        }
      }
    }
    const auto operands = [&](std::size_t sources, std::size_t targets) {
      if (step.sources.size() != sources || step.targets.size() != targets) flaw(rank, channel, "wrong operands");
    };
    const bool has_peer = step.kind != StepKind::kReduce;
    if (has_peer && (step.peer < 0 || step.peer >= plan_.ranks || step.peer == rank))
      flaw(rank, channel, "no such peer");
    if (step.after_channel >= static_cast<int>(program(rank).channels.size())) flaw(rank, channel, "no such channel");
    switch (step.kind) {
      case StepKind::kSend: operands(1, 0); return same_channel(sends_in, {rank, step.peer});
      case StepKind::kSignal: operands(0, 0); return same_channel(sends_in, {rank, step.peer});
      case StepKind::kWait: operands(0, 0); return same_channel(receives_in, {step.peer, rank});
      case StepKind::kRecv:
        operands(!step.targets.empty() && step.targets.front().buffer == Buffer::kScratch ? 1 : 0, 1);
        return same_channel(receives_in, {step.peer, rank});
      case StepKind::kRecvReduce: operands(0, 1); return same_channel(receives_in, {step.peer, rank});
      case StepKind::kReduce:
        if (step.sources.empty() || step.targets.empty()) flaw(rank, channel, "wrong operands");
        return;
    }
  }

  Value own(Rank rank, int chunk) const {
    Value value{.chunk = chunk, .counts = std::vector<std::uint8_t>(plan_.ranks, 0)};
    value.counts[rank] = 1;
    return value;
  }

  // What the buffers hold before.
  void prepare() {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      for (std::uint32_t chunk = 0; chunk < plan_.chunks; ++chunk) {
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
        Cell& start = cell({rank, buffer, chunk});
        if (defined) start.value = own(rank, static_cast<int>(chunk));
        if (!plan_.inputs_ready) {
          // Written by the rank itself, just before it starts.
          start.writer = first_thread_[rank];
          start.written_at = 1;
        }
      }
    }
    // All of a rank's channels start after that.
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      for (std::size_t c = 1; c < program(rank).channels.size(); ++c) {
        clocks_[first_thread_[rank] + c][first_thread_[rank]] = 1;
      }
    }
  }

  bool step(Rank rank, int channel) {
    const int thread = first_thread_[rank] + channel;
    const Channel& steps = program(rank).channels[channel];
    if (next_[thread] == steps.size()) return false;
    const Step& step = steps[next_[thread]];
    if (step.after_channel >= 0) {
      const int other = first_thread_[rank] + step.after_channel;
      if (static_cast<int>(next_[other]) <= step.after_step) return false;
      merge(clocks_[thread], finished_at_[other][step.after_step]);
    }
    for (const ChunkRef& target : step.targets) {
      if (target.rank == rank && cell(target).unsent > 0) return false;
    }
    if (!apply(rank, channel, thread, step)) return false;
    finished_at_[thread].push_back(clocks_[thread]);
    ++clocks_[thread][thread];
    ++next_[thread];
    return true;
  }

  bool apply(Rank rank, int channel, int thread, const Step& step) {
    Clock& clock = clocks_[thread];
    if (step.kind == StepKind::kSend || step.kind == StepKind::kSignal) {
      Message message{.signal = step.kind == StepKind::kSignal, .clock = clock};
      if (!message.signal) {
        message.value = read(rank, channel, thread, step.sources.front());
        message.source = &cell(step.sources.front());
        ++message.source->unsent;
      }
      queue(rank, step.peer).push_back(std::move(message));
      return true;
    }
    if (step.kind == StepKind::kReduce) {
      reduce(rank, channel, thread, step);
      return true;
    }
    std::deque<Message>& arriving = queue(step.peer, rank);
    if (arriving.empty()) return false;
    Message message = std::move(arriving.front());
    arriving.pop_front();
    if (message.signal != (step.kind == StepKind::kWait)) flaw(rank, channel, "a signal meets a transfer");
    merge(clock, message.clock);
    if (message.signal) return true;
    --message.source->unsent;
    message.source->taken[thread] = clock[thread];
    const ChunkRef& target = step.targets.front();
    const std::uint32_t like = step.sources.empty() ? target.chunk : step.sources.front().chunk;
    if (plan_.collective != Collective::kAlltoall && message.value.chunk != static_cast<int>(like)) {
      flaw(rank, channel, "the peer sends another chunk");
    }
    if (step.kind == StepKind::kRecvReduce) {
      if (plan_.accumulates_once) flaw(rank, channel, "it accumulates in several steps");
      Value sum = read(rank, channel, thread, target);
      add(rank, channel, sum, message.value);
      check_final(rank, channel, step, sum);
      message.value = std::move(sum);
    } else if (step.final) {
      flaw(rank, channel, "a receive is marked final");
    }
    write(rank, channel, thread, target, std::move(message.value));
    return true;
  }

  void reduce(Rank rank, int channel, int thread, const Step& step) {
    Value result = read(rank, channel, thread, step.sources.front());
    for (std::size_t i = 1; i < step.sources.size(); ++i) {
      add(rank, channel, result, read(rank, channel, thread, step.sources[i]));
    }
    if (step.sources.size() > 1) {
      check_final(rank, channel, step, result);
      for (std::size_t i = 0; plan_.accumulates_once && i < step.sources.size(); ++i) {
        if (step.sources.size() != static_cast<std::size_t>(plan_.ranks) ||
            !cell(step.sources[i]).value.only(static_cast<Rank>(i))) {
          flaw(rank, channel, "it does not add all ranks in their order at once");
        }
      }
    } else if (step.final) {
      flaw(rank, channel, "a copy is marked final");
    }
    for (const ChunkRef& target : step.targets) {
      if (target.buffer == Buffer::kData && plan_.collective != Collective::kAlltoall &&
          static_cast<int>(target.chunk) != result.chunk) {
        flaw(rank, channel, "it writes a chunk to another place");
      }
      write(rank, channel, thread, target, result);
    }
  }

  void add(Rank rank, int channel, Value& sum, const Value& other) const {
    if (plan_.collective != Collective::kAllreduce && plan_.collective != Collective::kReduceScatter) {
      flaw(rank, channel, "it reduces in a collective that does not");
    }
    if (sum.chunk != other.chunk) flaw(rank, channel, "it adds different chunks");
    for (std::size_t r = 0; r < sum.counts.size(); ++r) {
      sum.counts[r] = static_cast<std::uint8_t>(sum.counts[r] + other.counts[r]);
      if (sum.counts[r] > 1) flaw(rank, channel, "the contribution of rank " + std::to_string(r) + " is added twice");
    }
  }

  void check_final(Rank rank, int channel, const Step& step, const Value& sum) const {
    if (step.final != sum.complete()) {
      flaw(rank, channel, step.final ? "an incomplete sum is marked final" : "a complete sum is not marked final");
    }
  }

  Value read(Rank rank, int channel, int thread, const ChunkRef& ref) {
    Cell& cell = this->cell(ref);
    if (cell.value.chunk < 0) flaw(rank, channel, "it reads a chunk that holds nothing");
    if (cell.writer >= 0 && clocks_[thread][cell.writer] < cell.written_at) {
      flaw(rank, channel, "it reads memory that may still be written");
    }
    cell.readers[thread] = clocks_[thread][thread];
    return cell.value;
  }

  void write(Rank rank, int channel, int thread, const ChunkRef& ref, Value value) {
    Cell& cell = this->cell(ref);
    const Clock& clock = clocks_[thread];
    if (cell.writer >= 0 && clock[cell.writer] < cell.written_at) {
      flaw(rank, channel, "it writes memory that may still be written");
    }
    for (const auto& [reader, at] : cell.readers) {
      if (clock[reader] < at) flaw(rank, channel, "it writes memory that may still be read");
    }
    if (ref.rank != rank) check_sent(rank, channel, clock, cell);
    cell.taken.clear();
    cell.value = std::move(value);
    cell.writer = thread;
    cell.written_at = clock[thread];
    cell.readers.clear();
  }

  // A posted transfer reads its chunk later, when the link takes it, and nothing tells other ranks of that but its arrival.
  // The chunk's own rank waits for it by itself.
  void check_sent(Rank rank, int channel, const Clock& clock, const Cell& cell) const {
    bool sent = cell.unsent == 0;
    for (const auto& [receiver, at] : cell.taken) sent = sent && clock[receiver] >= at;
    if (!sent) flaw(rank, channel, "it writes another rank's memory that may still have to be sent");
  }

  void check_ended() const {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      for (std::size_t c = 0; c < program(rank).channels.size(); ++c) {
        if (next_[first_thread_[rank] + c] < program(rank).channels[c].size()) {
          flaw(rank, static_cast<int>(c), "it waits for ever");
        }
      }
    }
    for (const auto& queue : queues_) {
      if (!queue.empty()) throw Flaw{plan_.generator + ": something is sent that nobody receives"};
    }
  }

  void check_result() {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      for (std::uint32_t chunk = 0; chunk < plan_.chunks; ++chunk) {
        const Value& value = cell({rank, Buffer::kData, chunk}).value;
        const int block = static_cast<int>(chunk) / std::max(1, parts());
        bool right = value.chunk == static_cast<int>(chunk);
        switch (plan_.collective) {
          case Collective::kAllreduce: right = right && value.complete(); break;
          case Collective::kReduceScatter: right = block != rank || (right && value.complete()); break;
          case Collective::kAllgather: right = right && value.only(block); break;
          case Collective::kBroadcast: right = right && value.only(plan_.root); break;
          case Collective::kAlltoall:
            right = value.chunk == rank * parts() + static_cast<int>(chunk) % parts() && value.only(block);
            break;
          case Collective::kBarrier: break;
        }
        if (!right) {
          throw Flaw{plan_.generator + ": rank " + std::to_string(rank) + " ends with a wrong chunk " +
                     std::to_string(chunk)};
        }
      }
    }
  }

  // A rank that has ended may reuse its memory: nobody else may touch it any more.
  void check_memory_released() {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      Clock end(thread_count_, 0);
      for (std::size_t c = 0; c < program(rank).channels.size(); ++c) merge(end, clocks_[first_thread_[rank] + c]);
      for (std::uint32_t chunk = 0; chunk < plan_.chunks; ++chunk) {
        const Cell& last = cell({rank, Buffer::kData, chunk});
        bool released = last.writer < 0 || end[last.writer] >= last.written_at;
        for (const auto& [reader, at] : last.readers) released = released && end[reader] >= at;
        if (!released) {
          throw Flaw{plan_.generator + ": rank " + std::to_string(rank) + " ends while chunk " + std::to_string(chunk) +
                     " of its memory is in use"};
        }
      }
    }
  }

  const Plan& plan_;
  const Topology& topology_;
  int thread_count_ = 0;
  std::vector<int> first_thread_;  // of each rank
  std::vector<Clock> clocks_;
  std::vector<std::vector<Clock>> finished_at_;  // by thread and step
  std::vector<std::size_t> next_;
  std::vector<Cell> cells_;
  std::vector<std::deque<Message>> queues_;
};

}  // namespace

std::optional<std::string> verify(const Plan& plan, const Topology& topology) {
  try {
    Execution(plan, topology).run();
    return std::nullopt;
  } catch (const Flaw& flaw) {
    return flaw.text;
  }
}

}  // namespace ringcore::plan
