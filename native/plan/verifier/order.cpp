#include "plan/verifier/order.hpp"

#include <algorithm>

namespace ringcore::plan {

Order::Order(const Excerpt& plan, std::size_t width, std::size_t cells)
    : symmetry_(plan.symmetry),
      one_sided_(plan.one_sided),
      width_(width),
      tracks_(plan.one_sided || width > 1),
      finished_at_(static_cast<std::size_t>(symmetry_.orbits()) * width) {
  const std::size_t clock_size = !tracks_ ? 0 : one_sided_ ? static_cast<std::size_t>(plan.nodes) * width : width;
  clocks_.assign(finished_at_.size(), Clock(clock_size, 0));
  if (tracks_) touched_.resize(cells);
}

void Order::begin(int orbit, std::size_t channels) {
  for (std::size_t c = 0; tracks_ && c < channels; ++c) {
    Clock& clock = clocks_[thread(orbit, c)];
    clock[own_thread(orbit, c)] = clock[own_thread(orbit, 0)] = 1;
  }
}

void Order::holds_data(int orbit, std::size_t cell) {
  if (!tracks_) return;
  touched_[cell].writer = own_thread(orbit, 0);
  touched_[cell].written_at = 1;
}

void Order::end_step(int orbit, std::size_t channel) {
  const std::size_t thread = this->thread(orbit, channel);
  if (width_ > 1) finished_at_[thread].push_back(clocks_[thread]);
  if (tracks_) ++clocks_[thread][own_thread(orbit, channel)];
}

void Order::follow(int orbit, std::size_t channel, std::size_t other, std::size_t step) {
  if (width_ > 1) merge(clocks_[thread(orbit, channel)], finished_at_[thread(orbit, other)][step], 0);
}

Order::Clock Order::sent(int orbit, std::size_t channel) const {
  return one_sided_ ? clocks_[thread(orbit, channel)] : Clock();
}

void Order::receive(int orbit, std::size_t channel, const Clock& brought, int turn) {
  merge(clocks_[thread(orbit, channel)], brought, turn);
}

void Order::take(int orbit, std::size_t channel, std::size_t cell, Rank receiver) {
  if (!tracks_) return;
  touched_[cell].taken[thread_of(receiver, channel, 0)] = clocks_[thread(orbit, channel)][own_thread(orbit, channel)];
}

std::string_view Order::read(int orbit, std::size_t channel, const Located& at) {
  if (!tracks_) return {};
  const Clock& clock = clocks_[thread(orbit, channel)];
  Touched& touched = touched_[at.cell];
  if (touched.writer >= 0 && clock[turned_thread(touched.writer, at.turn)] < touched.written_at) {
    return "it reads memory that may still be written";
  }
  touched.readers[thread_as_seen(orbit, channel, at)] = clock[own_thread(orbit, channel)];
  return {};
}

std::string_view Order::write(int orbit, std::size_t channel, const Located& at, bool of_another, int unsent) {
  if (!tracks_) return {};
  Touched& touched = touched_[at.cell];
  const Clock& clock = clocks_[thread(orbit, channel)];
  if (touched.writer >= 0 && clock[turned_thread(touched.writer, at.turn)] < touched.written_at) {
    return "it writes memory that may still be written";
  }
  for (const auto& [reader, time] : touched.readers) {
    if (clock[turned_thread(reader, at.turn)] < time) return "it writes memory that may still be read";
  }
  if (of_another && !arrived_before(clock, at, unsent)) {
    return "it writes another rank's memory that may still have to be sent";
  }
  touched = {.writer = thread_as_seen(orbit, channel, at), .written_at = clock[own_thread(orbit, channel)]};
  return {};
}

// A posted transfer reads its chunk later, when the link takes it, and nothing tells other ranks of that but its arrival.
// The chunk's own rank waits for it by itself.
bool Order::arrived_before(const Clock& clock, const Located& at, int unsent) const {
  const auto& taken = touched_[at.cell].taken;
  return unsent == 0 && std::all_of(taken.begin(), taken.end(), [&](const auto& each) {
           return clock[turned_thread(each.first, at.turn)] >= each.second;
         });
}

std::size_t Order::still_in_use(int orbit, std::size_t channels, std::size_t first_cell, std::size_t cells) const {
  Clock end(clocks_.front().size(), 0);
  for (std::size_t c = 0; c < channels; ++c) merge(end, clocks_[thread(orbit, c)], 0);
  const auto released = [&](const Touched& last) {
    return (last.writer < 0 || end[last.writer] >= last.written_at) &&
           std::all_of(last.readers.begin(), last.readers.end(),
                       [&](const auto& reader) { return end[reader.first] >= reader.second; });
  };
  const auto begin = touched_.begin() + static_cast<std::ptrdiff_t>(first_cell);
  return static_cast<std::size_t>(std::find_if_not(begin, begin + static_cast<std::ptrdiff_t>(cells), released) -
                                  begin);
}

int Order::thread_of(Rank rank, std::size_t channel, int turn) const {
  if (!one_sided_) return static_cast<int>(channel);
  return symmetry_.seat_of(symmetry_.turned(rank, turn)) * static_cast<int>(width_) + static_cast<int>(channel);
}

int Order::own_thread(int orbit, std::size_t channel) const {
  return thread_of(symmetry_.representative(orbit), channel, 0);
}

int Order::turned_thread(int thread, int turn) const {
  if (!one_sided_ || turn == 0) return thread;
  const int width = static_cast<int>(width_);
  const int seat = thread / width;
  const int first = seat / symmetry_.turns() * symmetry_.turns();
  return (first + symmetry_.sum(seat - first, turn)) * width + thread % width;
}

int Order::thread_as_seen(int orbit, std::size_t channel, const Located& at) const {
  return thread_of(symmetry_.representative(orbit), channel, symmetry_.inverse(at.turn));
}

void Order::merge(Clock& into, const Clock& other, int turn) const {
  for (std::size_t i = 0; i < other.size(); ++i) {
    std::uint32_t& entry = into[turned_thread(static_cast<int>(i), turn)];
    entry = std::max(entry, other[i]);
  }
}

}  // namespace ringcore::plan
