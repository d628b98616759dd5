// What a plan's steps do to the chunks, symbolically.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "plan/contributions.hpp"
#include "plan/excerpt.hpp"
#include "plan/streams.hpp"
#include "plan/verifier/order.hpp"

namespace ringcore::plan {

// Every representative stands for its orbit: a step of it is that step of all, turned. What it has sent to a rank is, turned,
// what another rank has sent to it. Cells, messages and clocks are kept as the representative sees them; who looks at
// those of another rank turns them.
class Execution {
 public:
  // The plan, whose shape is right, outlives it.
  explicit Execution(const Excerpt& plan);

  // Throws Flaw where the plan is wrong.
  void run();

 private:
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
  static constexpr std::size_t kCopied = SIZE_MAX;
  struct Message {
    Value value;
    bool signal = false;
    bool quantised = false;
    Order::Clock clock;
    std::size_t source = kCopied;  // cell
    std::size_t chunks = 0;  // of the transfer that begins with it
  };

  const Program& program(int orbit) const { return plan_.programs[orbit]; }
  int parts() const { return static_cast<int>(plan_.chunks) / plan_.ranks; }
  std::size_t thread(int orbit, std::size_t channel) const {
    return static_cast<std::size_t>(orbit) * width_ + channel;
  }
  std::size_t cells_of_rank() const;
  std::size_t cell_of(int orbit, Buffer buffer, std::uint32_t chunk) const;
  Located locate(const ChunkRef& ref) const;
  void turn(Value& value, int turn) const;
  bool complete(const Value& value) const { return value.contributions.count() == plan_.ranks; }
  [[noreturn]] void flaw(int orbit, std::size_t channel, std::string_view what) const;
  // A complaint is one of Order's; an empty one is none.
  void heed(int orbit, std::size_t channel, std::string_view complaint) const;
  std::size_t end_of_segment(int orbit, std::size_t channel, std::size_t segment) const;

  void prepare();
  void prepare_chunk(int orbit, Rank rank, std::uint32_t chunk);
  void wake(int orbit);
  void go_on();
  // False: it has to wait.
  bool step(int orbit, std::size_t channel);
  bool apply(int orbit, std::size_t channel, const Step& step);
  void send(int orbit, std::size_t channel, const Step& step);
  bool receive(int orbit, std::size_t channel, const Step& step);
  void receive_chunk(int orbit, std::size_t channel, const Step& step, const ChunkRef& target, Message message);
  void take(int orbit, std::size_t channel, const Step& step, const ChunkRef& target, Value value);
  void reduce(int orbit, std::size_t channel, const Step& step);
  bool holds_only(const Located& at, Rank rank) const;
  void add(int orbit, std::size_t channel, Value& sum, const Value& other) const;
  void check_final(int orbit, std::size_t channel, const Step& step, const Value& sum);
  Value read(int orbit, std::size_t channel, const ChunkRef& ref);
  void write(int orbit, std::size_t channel, const ChunkRef& ref, Value value);

  void check_ended() const;
  void check_result() const;
  bool right(Rank rank, int chunk, const Value& value) const;
  void check_memory_released() const;
  void check_released(int orbit, Buffer buffer) const;
  void check_rounded_once() const;

  const Excerpt& plan_;
  const Symmetry& symmetry_;
  int orbits_;
  std::size_t width_;  // channels, of the representative that has most
  Order order_;
  std::vector<std::size_t> next_;
  std::vector<std::size_t> limits_;  // where the segment ends
  std::vector<Cell> cells_;
  std::size_t completed_ = 0;  // sums, on all nodes
  Streams<Queue<Message>> streams_;
  std::deque<int> turn_of_;  // orbits that may have something to do
  std::vector<char> waiting_;  // which of them
};

}  // namespace ringcore::plan
