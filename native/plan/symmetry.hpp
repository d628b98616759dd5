// Which ranks of a plan are images of each other: what one of them does, all of them do, turned.
#pragma once

#include <vector>

#include "plan/plan.hpp"

namespace ringcore::plan {

// A group of turns that moves the nodes. Every node has a seat: in which orbit it is, and by which turn it comes from the
// orbit's representative, which stands at turn 0. Turns are numbers of several digits that are added digit by digit: a
// ring has one digit, exclusive or has many of radix 2. With blocks that move, chunk block b goes with rank b.
class Symmetry {
 public:
  static Symmetry none(int nodes);
  // Rank r is rank 0 turned by r: in a circle, or by exclusive or (the number is a power of two).
  static Symmetry circle(int nodes);
  static Symmetry exclusive_or(int nodes);
  // `radices`: of the digits, the highest first. `node_at`: by seat, orbit for orbit.
  Symmetry(std::vector<int> radices, std::vector<Rank> node_at);

  Symmetry& blocks_move() { return data_moves_ = true, *this; }
  Symmetry& scratch_moves() { return scratch_moves_ = true, *this; }

  int nodes() const { return static_cast<int>(node_at_.size()); }
  int turns() const { return turns_; }
  int orbits() const { return nodes() / turns_; }
  Rank representative(int orbit) const { return node_at_[orbit * turns_]; }
  int orbit_of(Rank node) const { return seat_of_[node] / turns_; }
  int turn_of(Rank node) const { return seat_of_[node] % turns_; }
  int seat_of(Rank node) const { return seat_of_[node]; }
  Rank turned(Rank node, int turn) const {
    return turn == 0 ? node : node_at_[orbit_of(node) * turns_ + sum(turn_of(node), turn)];
  }
  int sum(int turn, int other) const;
  int inverse(int turn) const;
  // Turns of which all others are sums.
  std::vector<int> basis() const;
  // Whether all turns by this one keep neighbouring seats side by side but for the border of the orbit.
  bool keeps_order(int turn) const { return turn % lower_ == 0; }

  // Whether the blocks are as many as they must be to move.
  bool fits(const Header& header) const;
  std::uint32_t turned(const Header& header, Buffer buffer, std::uint32_t chunk, int turn) const;
  Program turned(const Header& header, const Program& program, int turn) const;

  // The turns that are multiples of `step`; nothing when these are no group.
  bool divides(int step) const;
  Symmetry subgroup(int step) const;

 private:
  std::vector<int> radices_;
  std::vector<Rank> node_at_;  // by seat
  std::vector<int> seat_of_;   // by node
  int turns_ = 1;
  int lower_ = 1;  // the product of all radices but the highest
  bool data_moves_ = false;
  bool scratch_moves_ = false;
};

}  // namespace ringcore::plan
