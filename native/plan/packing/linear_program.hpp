// How much of each column, so that all of them together are most, and no row is used more than it has room for: the
// simplex method, with columns that come one by one as they are found to be worth their price.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace ringcore::plan {

class LinearProgram {
 public:
  struct Use {
    std::size_t row = 0;
    double amount = 0;
    auto operator<=>(const Use&) const = default;
  };
  using Column = std::vector<Use>;

  explicit LinearProgram(std::vector<double> room);

  // By row: what the total gains for one more unit of room. Of rows that are better left unused, less than 0.
  std::span<const double> prices() const { return prices_; }
  double total() const { return total_; }
  // A column that costs less than 1 by the prices makes the total larger.
  void enter(int name, const Column& column);
  // Leaves room unused that is better left unused. False where there is none.
  bool leave_room();
  // The columns that there is something of.
  std::vector<std::pair<int, double>> amounts() const;

 private:
  static constexpr int kRoom = -1;
  void pivot(int name, double gain, const std::vector<double>& direction);

  std::size_t rows_;
  std::vector<double> inverse_;  // of the basis: rows_ * rows_
  std::vector<double> values_;   // of what is in the basis
  std::vector<int> basis_;       // names
  std::vector<double> prices_;
  double total_ = 0;
};

}  // namespace ringcore::plan
