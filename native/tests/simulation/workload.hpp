// What the ranks of a simulated job are to do, drawn from one seed, and what must come out of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "engine/request.hpp"

namespace ringcore::simulation {

// All that is decided at random in one seed is decided by one of these.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  int below(int bound) { return static_cast<int>(generator_() % static_cast<unsigned>(bound)); }
  bool one_in(int chances) { return below(chances) == 0; }
  template <class T, std::size_t N>
  T of(const T (&choices)[N]) {
    return choices[static_cast<std::size_t>(below(static_cast<int>(N)))];
  }
  std::mt19937_64& generator() { return generator_; }

 private:
  std::mt19937_64 generator_;
};

// Where the memory of a tensor lies. kFromRegistered: in registered memory, as that of its result, which lies elsewhere in it.
enum class Place : std::uint8_t { kApart, kInPlace, kRegistered, kFromRegistered };
// What one member submits otherwise than the others. kRefused: its own engine does not take it.
enum class Misfit : std::uint8_t {
  kNone,
  kDType,
  kOp,
  kPrescale,
  kPostscale,
  kRoot,
  kRows,
  kOutput,
  kCompression,
  kRefused
};

// What is submitted under one name. Members are numbered within the process set.
struct Request {
  std::string name;
  std::size_t set = 0;  // index in Workload::sets
  Collective collective{};
  DType dtype{};
  ReduceOp op{};
  double prescale = 1;
  double postscale = 1;
  Compression compression{};
  int root = 0;
  int priority = 0;
  std::vector<std::uint64_t> rows;  // of each tensor; a row has two elements
  bool group = false;
  Place place{};
  bool on_device = false;
  bool exact = true;  // values whose sums need no rounding
  unsigned outputs = 0;  // a bit for each member that gives a place for a result of other rows than its tensor
  std::uint64_t salt = 0;
  Misfit misfit{};
  int misfit_member = -1;
  bool misfit_of_all = false;  // kRefused: everybody makes the same mistake
  int missing_member = -1;  // does not submit it

  bool reduces() const { return ringcore::reduces(collective); }
  bool has_own_result() const { return engine::has_own_result(collective); }
  bool gives_output(int member) const { return has_own_result() && (outputs >> member & 1U) != 0; }
  bool is_spoilt_by(int member) const { return member == misfit_member || misfit_of_all; }
  bool fits() const { return misfit == Misfit::kNone && missing_member < 0; }
};

// A plan from outside that the ranks register.
struct OfferedBefore {
  int serving = 0;  // of the servers
  bool always = false;
};

// Requests that a rank submits, in an order of its own, and waits for before it goes on.
struct Phase {
  std::vector<Request> requests;
  std::vector<std::size_t> added;    // process sets, before it
  std::vector<std::size_t> removed;  // after it
  bool blocking = false;             // each request in a call that waits, in one order
  std::optional<OfferedBefore> offer;
  bool joins = false;                // ranks leave out the last requests, and join
};

struct Workload {
  int ranks = 2;
  int servers = 0;  // behind them
  std::vector<int> host_of;  // of all these
  bool encrypted = false;  // links between hosts
  bool registered_memory = false;
  bool deterministic = false;
  bool devices = false;       // some requests are about tensors on a device
  bool able_devices = false;  // which can do something on every rank
  bool library = false;       // one that does whole collectives stands beside
  bool sleeps = false;        // ranks that have nothing to do are not driven until something rings
  std::size_t fusion_bytes = 4096;
  int survey_every = 200;
  std::size_t slice_bytes = 1024;
  std::size_t direct_bytes = 512;
  std::size_t partition_bytes = 0;
  std::size_t credit_bytes = 1;
  std::size_t eager_bytes = 256;
  int direct_members = 16;
  std::vector<std::vector<Rank>> sets;  // members in ascending order; the first one is the world
  // Of these a server is a member. Nobody else adds them, under the number that is their index.
  std::vector<std::size_t> with_server;
  std::vector<Phase> phases;
};

Workload draw_workload(Draw& draw);
inline int nodes_of(const Workload& workload) { return workload.ranks + workload.servers; }
// Whether a process set is the business of its members alone.
inline bool is_agreed(const Workload& workload, std::size_t set) {
  return std::ranges::find(workload.with_server, set) != workload.with_server.end();
}

// How many rows a member puts into a tensor, and how many of them go to another member in an alltoall.
std::uint64_t rows_of(const Request& request, std::size_t tensor, int member, int members);
std::uint64_t split_of(const Request& request, std::size_t tensor, int from, int to);
// How many rows it gets, of a collective whose result has other rows than its tensor.
std::uint64_t result_rows_of(const Request& request, std::size_t tensor, int member, int members);
// What a member puts into a tensor.
std::vector<std::byte> input_of(const Request& request, std::size_t tensor, int member, int members);
// What is wrong with what a member got, or nothing. `contributors`: the members that have not joined instead.
std::string check_result(const Request& request, std::size_t tensor, int member, int members,
                         const std::vector<int>& contributors, std::span<const std::byte> got);

}  // namespace ringcore::simulation
