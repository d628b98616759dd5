// Whose contributions a value holds: a set of seats (symmetry.hpp), as its runs of neighbours. The sums of a ring, of trees
// and of a direct exchange are few runs, whatever the number of ranks.
#pragma once

#include <optional>
#include <vector>

#include "plan/symmetry.hpp"

namespace ringcore::plan {

class Contributions {
 public:
  Contributions() = default;
  explicit Contributions(int seat) : runs_{{seat, seat + 1}} {}

  // Adds those of `other`, and says which seat has been there before, if any.
  std::optional<int> add(const Contributions& other);
  int count() const;
  bool only(int seat) const { return runs_.size() == 1 && runs_[0].begin == seat && runs_[0].end == seat + 1; }
  void turn(const Symmetry& symmetry, int turn);

 private:
  struct Run {
    int begin = 0;
    int end = 0;
  };
  void join_neighbours();

  std::vector<Run> runs_;  // in order, with room between them
};

}  // namespace ringcore::plan
