// How long a plan takes: its programs, step by step, over links with rate and latency, ports that the ranks of a host
// share, and what a network does to them that is not even.
//
// What goes through a port goes one after the other, as it comes. A rank goes on as far as it can without asking what
// time it is elsewhere; only what wants a port that others want too waits for its turn. So a ring of 10,000 ranks needs no
// order at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "plan/excerpt.hpp"
#include "plan/topology.hpp"
#include "plan/ways.hpp"

namespace ringcore::plan {

// What steps cost the processor; what links cost stands in the topology.
struct CostModel {
  double step_s = 0.05e-6;  // any step
  double touch_seconds_per_byte = 1 / 30e9;  // of each operand of a local or one-sided reduction or copy
};

// What makes hosts differ that the topology takes for alike.
struct Disturbance {
  double jitter_s = 0;  // what is sent between hosts arrives up to so much later, drawn evenly
  std::uint64_t seed = 1;
  std::map<int, double> slow_hosts;  // all that they do takes so many times longer
  bool none() const { return jitter_s == 0 && slow_hosts.empty(); }
};

class Simulation {
 public:
  // A program with segments runs each of them `repeats` times, as the plan of so many parts does; its chunks then have
  // `chunk_bytes` each. All but the numbers outlive it. Without a disturbance the representatives are simulated, and the
  // excerpt's symmetry moves whole hosts; with one, every rank by itself.
  Simulation(const Excerpt& plan, const Topology& topology, const CostModel& model, double chunk_bytes,
             std::uint32_t repeats, const Disturbance& disturbance);

  // Seconds until the last rank is done.
  double run();
  // What there is to simulate, in steps of all that are simulated.
  static double steps_of(const Excerpt& plan, std::uint32_t repeats, const Disturbance& disturbance);

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  static constexpr double kNever = -1;

  // A step, as far as time is concerned.
  struct Move {
    StepKind kind{};
    std::uint32_t operands = 0;
    std::uint32_t peer = 0;  // of those that the program sends to, or receives from
    std::uint32_t after = kNone;  // note
    std::uint32_t note = kNone;  // where to write when it ended, as others wait for it
  };
  struct Track {  // what there is of a channel in all ranks of an orbit
    std::vector<Move> moves;
    std::vector<std::uint32_t> segment_ends;
  };
  struct Orbit {
    std::vector<Track> tracks;
    std::vector<Rank> sends_to;  // in ascending order, as the representative sees them
    std::vector<std::size_t> sending_channel;  // to each of them
    std::vector<Rank> receives_from;
    std::uint32_t notes = 0;
  };
  struct Actor {  // a rank, or an orbit
    Rank node = 0;
    int turn = 0;
    std::uint32_t orbit = 0;
    std::uint32_t first_thread = 0;
    std::uint32_t first_sent = 0;  // of its streams
    std::uint32_t first_received = 0;
    std::uint32_t first_note = 0;
    int host = 0;
    double slowness = 1;
  };
  struct Thread {
    double now = 0;
    std::uint32_t actor = 0;
    std::uint32_t next = 0;  // move
    std::uint32_t begin = 0;  // of the segment
    std::uint32_t segment = 0;
    std::uint32_t round = 0;  // of the segment's repeats
  };
  struct Transfer {
    double time = 0;  // when it can depart, or when it has arrived
    std::uint32_t next = kNone;
    std::uint32_t chunks = 0;  // none: a signal
  };
  struct Transfers {  // a list in `transfers_`
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
    bool empty() const { return head == kNone; }
  };
  struct Stream {
    double free = 0;
    double last = 0;  // arrival
    Transfers departing;
    Transfers arrived;  // or on their way
    std::uint32_t waiting = kNone;  // thread
    std::uint32_t from = 0;  // actors
    std::uint32_t to = 0;
    std::uint32_t channel = 0;  // of the sender
    std::uint32_t first_need = 0;  // of the resources that it needs
    std::uint32_t needs = 0;
    double latency_s = 0;
    bool between_hosts = false;
    bool shared = false;  // others need them too
    bool shares_long_way = false;
  };
  // Something that one transfer has at a time: a direction of a port or of a cable, what a rank copies in or out.
  struct Resource {
    double free = 0;
    int streams = 0;  // that need it
    bool watched = false;  // a turn comes when it is free
    // Those that need it first of all: who has waited longer comes first.
    std::priority_queue<std::pair<std::uint64_t, std::uint32_t>, std::vector<std::pair<std::uint64_t, std::uint32_t>>,
                        std::greater<>>
        waiting;
  };
  struct Turn {
    double time = 0;
    std::uint64_t number = 0;
    std::uint32_t stream = kNone;  // or a resource
    std::uint32_t resource = kNone;
    bool operator>(const Turn& other) const { return time != other.time ? time > other.time : number > other.number; }
  };

  void compile();
  static Track compile_channel(const Program& program, std::size_t channel, Orbit& orbit);
  static void note_what_is_awaited(const Program& program, Orbit& orbit);
  void find_actors(bool all);
  void find_hosts();
  void connect();
  void find_resources();
  void find_shared();
  std::uint32_t actor_of(Rank node) const;
  std::uint32_t stream_between(Rank from, Rank to) const;

  void go_on();
  void advance(std::uint32_t thread);
  // False: it has to wait.
  bool step(std::uint32_t thread, const Track& track);
  void send(Thread& thread, const Move& move);
  bool receive(Thread& thread, std::uint32_t index, const Move& move);
  void pass(Thread& thread, const Track& track) const;
  static void skip_empty_segments(Thread& thread, const Track& track);
  void wake_siblings(const Actor& actor, std::uint32_t but);
  const LinkCost& cost_of(const Stream& stream) const;
  void append(Transfers& list, double time, std::uint32_t chunks);
  Transfer take(Transfers& list);
  std::span<const std::uint32_t> needs(const Stream& stream) const;
  std::uint32_t last_free(const Stream& stream) const;
  void try_to_depart(const Turn& turn);
  void offer(const Turn& turn);
  void watch(std::uint32_t resource);
  void depart(Stream& stream, double start, std::uint32_t chunks);
  // What several chunks that go at once cost who copies them, before or behind.
  double copy_seconds(const Move& move, const Actor& actor) const;
  double pass_ports(Stream& stream, double start, double bytes);
  double pass_cables(Stream& stream, double start, double bytes);
  double copy_inside(Stream& stream, double start, double bytes);

  const Excerpt& plan_;
  const Topology& topology_;
  const Symmetry& symmetry_;
  const CostModel model_;
  const Disturbance& disturbance_;
  double chunk_bytes_;
  double sent_bytes_;  // of a chunk, between hosts
  std::uint32_t repeats_;
  Ways ways_;
  std::vector<int> image_;  // of a host: the one that is simulated for it
  std::vector<int> crowd_;  // as many ranks of an orbit share a host
  // Of each host what leaves and what comes, of each actor what it copies out and in, of each cable.
  std::vector<Resource> resources_;
  std::vector<std::uint32_t> needed_;
  std::vector<Orbit> orbits_;
  std::vector<Actor> actors_;
  std::vector<Thread> threads_;
  std::vector<Stream> streams_;  // by sender
  std::vector<std::uint32_t> received_;  // by receiver: the stream
  std::vector<double> notes_;  // when a step ended that others wait for; kNever
  std::vector<Transfer> transfers_;
  std::uint32_t unused_ = kNone;  // of these
  std::vector<std::uint32_t> ready_;  // threads that can go on
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
  std::uint64_t next_number_ = 0;
  std::mt19937_64 generator_;
};

}  // namespace ringcore::plan
