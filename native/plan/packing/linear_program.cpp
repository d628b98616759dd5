#include "plan/packing/linear_program.hpp"

#include <algorithm>

namespace ringcore::plan {
namespace {

constexpr double kTiny = 1e-9;
// Rows have a little more room than they have, each another little: of equal ones the method would go round in circles.
constexpr double kPerturbation = 1e-7;

}  // namespace

LinearProgram::LinearProgram(std::vector<double> room)
    : rows_(room.size()),
      inverse_(rows_ * rows_, 0),
      values_(std::move(room)),
      basis_(rows_, kRoom),
      prices_(rows_, 0) {
  for (std::size_t row = 0; row < rows_; ++row) {
    inverse_[row * rows_ + row] = 1;
    values_[row] *= 1 + kPerturbation * static_cast<double>(row + 1) / static_cast<double>(rows_);
  }
}

void LinearProgram::enter(int name, const Column& column) {
  std::vector<double> direction(rows_, 0);
  double price = 0;
  for (const Use& use : column) {
    price += prices_[use.row] * use.amount;
    for (std::size_t row = 0; row < rows_; ++row) direction[row] += inverse_[row * rows_ + use.row] * use.amount;
  }
  pivot(name, 1 - price, direction);
}

bool LinearProgram::leave_room() {
  const auto lowest = std::min_element(prices_.begin(), prices_.end());
  if (lowest == prices_.end() || *lowest >= -kTiny) return false;
  const auto unused = static_cast<std::size_t>(lowest - prices_.begin());
  std::vector<double> direction(rows_);
  for (std::size_t row = 0; row < rows_; ++row) direction[row] = inverse_[row * rows_ + unused];
  pivot(kRoom, -*lowest, direction);
  return true;
}

// What comes into the basis grows until something that is there has nothing left.
void LinearProgram::pivot(int name, double gain, const std::vector<double>& direction) {
  std::size_t out = rows_;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (direction[row] <= kTiny) continue;
    if (out == rows_ || values_[row] * direction[out] < values_[out] * direction[row]) out = row;
  }
  if (out == rows_) return;
  double* const pivot_row = &inverse_[out * rows_];
  for (std::size_t i = 0; i < rows_; ++i) pivot_row[i] /= direction[out];
  values_[out] /= direction[out];
  for (std::size_t row = 0; row < rows_; ++row) {
    if (row == out || direction[row] == 0) continue;
    double* const changed = &inverse_[row * rows_];
    for (std::size_t i = 0; i < rows_; ++i) changed[i] -= direction[row] * pivot_row[i];
    values_[row] = std::max(0.0, values_[row] - direction[row] * values_[out]);
  }
  for (std::size_t i = 0; i < rows_; ++i) prices_[i] += gain * pivot_row[i];
  total_ += gain * values_[out];
  basis_[out] = name;
}

std::vector<std::pair<int, double>> LinearProgram::amounts() const {
  std::vector<std::pair<int, double>> found;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (basis_[row] != kRoom && values_[row] > 0) found.emplace_back(basis_[row], values_[row]);
  }
  return found;
}

}  // namespace ringcore::plan
