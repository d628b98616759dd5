// Which touch of a plan's memory comes before which, told by clocks.
//
// A thread is one channel of one rank. Only where memory is touched by several threads are there clocks: of the channels
// of a rank; of all threads when ranks touch each other's memory. They are kept as the representative of an orbit sees
// them (symmetry.hpp); who looks at those of another rank turns them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "plan/excerpt.hpp"

namespace ringcore::plan {

// One chunk of a rank's memory: that of its representative, and the turn from there.
struct Located {
  std::size_t cell = 0;
  int turn = 0;
};

class Order {
 public:
  using Clock = std::vector<std::uint32_t>;  // by thread

  // `width`: channels of the representative that has most.
  Order(const Excerpt& plan, std::size_t width, std::size_t cells);

  // All channels of an orbit's representative start, after its data are there; those in this cell are just written.
  void begin(int orbit, std::size_t channels);
  void holds_data(int orbit, std::size_t cell);

  // A step of a channel has ended; another step goes on behind it.
  void end_step(int orbit, std::size_t channel);
  void follow(int orbit, std::size_t channel, std::size_t other, std::size_t step);
  // What a message takes along, and what it brings, from a rank that is so far turned.
  Clock sent(int orbit, std::size_t channel) const;
  void receive(int orbit, std::size_t channel, const Clock& brought, int turn);
  // A posted transfer of that cell has arrived at this rank, which the cell's rank sees as `receiver`.
  void take(int orbit, std::size_t channel, std::size_t cell, Rank receiver);

  // What is wrong with it; empty: nothing. `unsent`: transfers of the cell that have not arrived.
  std::string_view read(int orbit, std::size_t channel, const Located& at);
  std::string_view write(int orbit, std::size_t channel, const Located& at, bool of_another, int unsent);
  // Which of these cells somebody may still touch when the orbit's rank has ended; their number when none.
  std::size_t still_in_use(int orbit, std::size_t channels, std::size_t first_cell, std::size_t cells) const;

 private:
  // Who touched a cell since it was last written.
  struct Touched {
    int writer = -1;  // thread; -1: nobody yet
    std::uint32_t written_at = 0;
    std::map<int, std::uint32_t> readers;  // thread -> its clock
    std::map<int, std::uint32_t> taken;  // thread that has received a transfer of it -> its clock then
  };

  std::size_t thread(int orbit, std::size_t channel) const {
    return static_cast<std::size_t>(orbit) * width_ + channel;
  }
  // The number of a thread as `rank` turned has it: the seat where it sits then, and its channel.
  int thread_of(Rank rank, std::size_t channel, int turn) const;
  int own_thread(int orbit, std::size_t channel) const;
  int turned_thread(int thread, int turn) const;
  // This thread as the representative of the cell's rank sees it.
  int thread_as_seen(int orbit, std::size_t channel, const Located& at) const;
  void merge(Clock& into, const Clock& other, int turn) const;
  bool arrived_before(const Clock& clock, const Located& at, int unsent) const;

  const Symmetry& symmetry_;
  bool one_sided_;
  std::size_t width_;
  bool tracks_;
  std::vector<Clock> clocks_;
  std::vector<std::vector<Clock>> finished_at_;  // by thread and step
  std::vector<Touched> touched_;
};

}  // namespace ringcore::plan
