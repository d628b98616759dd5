// For algorithms that want a power of two of ranks: the ranks beyond the largest one hand their values to a neighbour
// first and get the result from it at the end.
#pragma once

#include <bit>

#include "base/types.hpp"

namespace ringcore::plan {

class Fold {
 public:
  explicit Fold(int ranks)
      : core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))), extra_(ranks - core_) {}
  int core() const { return core_; }  // how many ranks take part in the middle
  bool even() const { return extra_ == 0; }
  // The first 2 * extra ranks come in pairs: the odd one hands over to the even one.
  bool hands_over(Rank rank) const { return rank < 2 * extra_ && rank % 2 == 1; }
  bool takes_over(Rank rank) const { return rank < 2 * extra_ && rank % 2 == 0; }
  int position(Rank rank) const { return rank < 2 * extra_ ? rank / 2 : rank - extra_; }
  Rank rank_at(int position) const { return position < extra_ ? position * 2 : position + extra_; }

 private:
  int core_;
  int extra_;
};

}  // namespace ringcore::plan
