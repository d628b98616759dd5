#include "cases.hpp"
#include "carriers/standard.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/reduce.hpp"
#include "runtime/runtime.hpp"
#include "transport/shm/arena_view.hpp"
#include "transport/shm/link.hpp"
#include "transport/shm/segment.hpp"

namespace ringcore::benchmarks {
namespace {

constexpr std::size_t kSizes[] = {8,         64,        1024,    4096,    16 << 10, 32 << 10, 64 << 10,
                                  128 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20};

// A barrier of spinning processes, for the limit and to start each sample together.
struct Meeting {
  std::atomic<int> arrived{0};
  std::atomic<int> round{0};
  void meet(int ranks) {
    const int now = round.load();
    if (arrived.fetch_add(1) + 1 == ranks) {
      arrived.store(0);
      round.store(now + 1);
      return;
    }
    while (round.load() == now) {
      if (ranks > 2) ::sched_yield();
    }
  }
};

struct Job {
  int ranks = 2;
  std::vector<int> segment_fds;
  std::vector<std::vector<int>> sockets;  // [rank][peer]
  Meeting* meeting = nullptr;
};

struct Rank_ {
  Rank rank;
  Job& job;
  std::unique_ptr<transport::Segment> segment;
  std::unique_ptr<transport::Arena> arena;
  std::vector<std::shared_ptr<transport::Segment>> peers;
  std::unique_ptr<Runtime> runtime;
};

void connect(Rank_& self) {
  const Job& job = self.job;
  RuntimeConfig config;
  config.engine.rank = self.rank;
  config.engine.epoch = 1;
  config.engine.links.resize(job.ranks);
  config.engine.host_of.assign(job.ranks, 0);
  config.engine.make_carriers = carriers::standard();
  config.local_ranks = job.ranks;
  config.settings.heartbeat = 20 * kSecond;
  const std::size_t reserved = 3 * config.settings.execution.fusion_threshold_bytes;
  // Own segment: mapped from the inherited descriptor like the peers'.
  self.segment = std::make_unique<transport::Segment>(
      transport::Segment::attach(Fd(job.segment_fds[self.rank]), self.rank, job.ranks));
  self.segment->map_arena();
  self.arena = std::make_unique<transport::Arena>(*self.segment, reserved);
  config.engine.arena = self.arena.get();
  config.engine.fusion_arena = self.segment->arena().data();
  self.peers.resize(job.ranks);
  for (Rank peer = 0; peer < job.ranks; ++peer) {
    if (peer == self.rank) continue;
    self.peers[peer] =
        std::make_shared<transport::Segment>(transport::Segment::attach(Fd(job.segment_fds[peer]), peer, job.ranks));
    config.engine.links[peer] =
        transport::make_shm_link(self.rank, peer, *self.segment, self.peers[peer], Fd(job.sockets[self.rank][peer]));
  }
  self.runtime = std::make_unique<Runtime>(std::move(config));
}

// One sample of one case: sets up, meets, runs `repeats` times.
using Body = std::function<void()>;

double sample_us(Rank_& self, int repeats, const Body& body) {
  const SteadyClock clock;
  self.job.meeting->meet(self.job.ranks);
  const Nanoseconds begin = clock.now();
  for (int i = 0; i < repeats; ++i) body();
  return static_cast<double>(clock.now() - begin) / 1000.0 / repeats;
}

void reduce_once(Rank_& self, std::byte* data, std::size_t bytes) {
  auto operation = std::make_shared<engine::Operation>();
  operation->descriptor.name = "bench";
  operation->descriptor.collective = Collective::kAllreduce;
  operation->descriptor.dtype = DType::kFloat32;
  operation->descriptor.op = ReduceOp::kSum;
  operation->descriptor.shape.dims = 1;
  operation->descriptor.shape.extent[0] = bytes / 4;
  operation->input = operation->output = data;
  self.runtime->run(operation, {});
  if (operation->error) throw *operation->error;
}

// What no allreduce in shared memory can avoid: each rank reads its share of all buffers and writes it to all.
void limit_once(Rank_& self, std::vector<std::byte*>& buffers, std::size_t bytes) {
  const int ranks = self.job.ranks;
  self.job.meeting->meet(ranks);
  const std::size_t count = bytes / 4;
  const std::size_t begin = count * self.rank / ranks;
  const std::size_t end = count * (self.rank + 1) / ranks;
  std::vector<std::byte*> at(ranks);
  for (int r = 0; r < ranks; ++r) at[r] = buffers[r] + begin * 4;
  std::vector<const std::byte*> from(at.begin(), at.end());
  reduce_many(DType::kFloat32, ReduceOp::kSum, from, at, end - begin);
  self.job.meeting->meet(ranks);
}

void fill(std::byte* data, std::size_t bytes, float value) {
  auto* floats = reinterpret_cast<float*>(data);
  std::fill(floats, floats + bytes / 4, value);
}

void verify(const char* name, const std::byte* data, std::size_t bytes, float expected) {
  const auto* floats = reinterpret_cast<const float*>(data);
  for (std::size_t i = 0; i < bytes / 4; ++i) {
    if (floats[i] != expected) {
      std::fprintf(stderr, "%s: wrong result at element %zu: %g, expected %g\n", name, i, floats[i], expected);
      std::exit(1);
    }
  }
}

void measure(Rank_& self) {
  const int ranks = self.job.ranks;
  const std::size_t largest = 256 << 20;
  std::byte* registered = self.arena->allocate(largest);
  std::vector<std::byte*> everywhere(ranks);
  const auto offset = self.arena->offset_of(registered, largest);
  std::deque<transport::ArenaView> views;
  for (Rank r = 0; r < ranks; ++r) {
    everywhere[r] = r == self.rank ? registered : views.emplace_back(self.peers[r]).at(*offset, largest);
  }
  std::vector<std::byte> private_memory(largest);
  for (const std::size_t bytes : kSizes) {
    const int repeats = static_cast<int>(std::clamp<std::size_t>((4 << 20) / bytes, 1, 2000));
    const int samples = bytes >= (16 << 20) ? 7 : 21;
    struct Case {
      const char* name;
      std::byte* data;
      Body body;
      std::vector<double> times;
    };
    std::vector<Case> cases;
    cases.push_back({"limit", registered, [&] { limit_once(self, everywhere, bytes); }, {}});
    cases.push_back({"registered", registered, [&] { reduce_once(self, registered, bytes); }, {}});
    cases.push_back({"private", private_memory.data(), [&] { reduce_once(self, private_memory.data(), bytes); }, {}});
    for (Case& c : cases) {
      // Once for the result; zeros afterwards stay zeros however often they are added.
      fill(c.data, bytes, static_cast<float>(1 << self.rank));
      self.job.meeting->meet(ranks);
      c.body();
      verify(c.name, c.data, bytes, static_cast<float>((1 << ranks) - 1));
      self.job.meeting->meet(ranks);
      fill(c.data, bytes, 0.0F);
    }
    for (int s = 0; s < samples; ++s) {
      for (Case& c : cases) c.times.push_back(sample_us(self, repeats, c.body));
    }
    if (self.rank != 0) continue;
    for (Case& c : cases) {
      std::sort(c.times.begin(), c.times.end());
      std::printf(
          "{\"case\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"median_us\": %.3f, \"p25_us\": %.3f, "
          "\"p75_us\": %.3f}\n",
          c.name, ranks, bytes, c.times[c.times.size() / 2], c.times[c.times.size() / 4],
          c.times[c.times.size() * 3 / 4]);
      std::fflush(stdout);
    }
  }
}

void run_rank(Rank rank, Job& job) {
  cpu_set_t cores;
  ::sched_getaffinity(0, sizeof(cores), &cores);
  // With a core for each rank, every rank keeps its own: migration would be measured otherwise. The affinity is set for
  // this thread only, after the runtime has counted the cores.
  Rank_ self{.rank = rank, .job = job, .segment = {}, .arena = {}, .peers = {}, .runtime = {}};
  connect(self);
  if (job.ranks <= CPU_COUNT(&cores)) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(rank, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
  }
  measure(self);
  self.runtime->leave("");
}

}  // namespace

int run_all(int ranks) {
  Job job;
  job.ranks = ranks;
  std::vector<transport::Segment> segments;
  for (Rank r = 0; r < ranks; ++r) {
    segments.push_back(transport::Segment::create(r, ranks));
    job.segment_fds.push_back(segments.back().fd());
  }
  job.sockets.assign(ranks, std::vector<int>(ranks, -1));
  for (Rank a = 0; a < ranks; ++a) {
    for (Rank b = a + 1; b < ranks; ++b) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) return 1;
      job.sockets[a][b] = pair[0];
      job.sockets[b][a] = pair[1];
    }
  }
  void* shared = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  job.meeting = new (shared) Meeting;
  std::vector<pid_t> children;
  for (Rank r = 0; r < ranks; ++r) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        run_rank(r, job);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", r, error.what());
        ::_exit(1);
      }
      ::fflush(stdout);
      ::_exit(0);
    }
    children.push_back(child);
  }
  int status = 0;
  for (const pid_t child : children) {
    int ended = 0;
    ::waitpid(child, &ended, 0);
    if (ended != 0) status = 1;
  }
  return status;
}

}  // namespace ringcore::benchmarks
