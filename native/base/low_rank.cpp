#include "base/low_rank.hpp"

#include <algorithm>
#include <cmath>

#include "base/float_mode.hpp"
#include "base/kernel_choice.hpp"

namespace ringcore {
namespace {

// Of its length so much is left where a row is made of those before it and of rounding.
constexpr double kNothing = 1e-5;

// In double precision, one after the other: no compiler may take another order.
template <class Value>
double dot(const Value* a, const Value* b, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

template <class Value>
void take_out(Value* row, const Value* matrix, std::size_t before, std::size_t columns) {
  for (std::size_t other = 0; other < before; ++other) {
    const Value* const unit = matrix + other * columns;
    const double part = dot(row, unit, columns);
    for (std::size_t i = 0; i < columns; ++i) {
      row[i] = static_cast<Value>(static_cast<double>(row[i]) - part * static_cast<double>(unit[i]));
    }
  }
}

// Whether something was left of it.
template <class Value>
bool make_unit(Value* row, const Value* matrix, std::size_t before, std::size_t columns) {
  const double whole = std::sqrt(dot(row, row, columns));
  if (!std::isfinite(whole)) return true;  // a step that is left out
  take_out(row, matrix, before, columns);
  take_out(row, matrix, before, columns);
  const double left = std::sqrt(dot(row, row, columns));
  if (!std::isfinite(left)) return true;  // so was one of those before it
  if (left <= kNothing * whole) return false;
  for (std::size_t i = 0; i < columns; ++i) row[i] = static_cast<Value>(static_cast<double>(row[i]) / left);
  return true;
}

template <class Value>
void orthonormalise(Value* matrix, std::size_t rows, std::size_t columns) {
  for (std::size_t r = 0; r < rows; ++r) {
    Value* const row = matrix + r * columns;
    // One of the axes always has something besides fewer rows than there are axes.
    for (std::size_t axis = r; !make_unit(row, matrix, r, columns); ++axis) {
      std::fill_n(row, columns, Value{0});
      row[axis % columns] = 1;
    }
  }
}

}  // namespace

bool can_be_narrow(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

void orthonormalise(DType dtype, std::byte* matrix, std::size_t rows, std::size_t columns) {
  const FloatMode mode;
  if (dtype == DType::kFloat64) {
    orthonormalise(reinterpret_cast<double*>(matrix), rows, columns);
  } else {
    orthonormalise(reinterpret_cast<float*>(matrix), rows, columns);
  }
}

void multiply(DType dtype, const NarrowProduct& product) {
  const FloatMode mode;
  kernels::chosen().narrow_product[dtype == DType::kFloat64 ? 1 : 0](product.left + product.begin * size_of(dtype),
                                                                     product.left_columns, product.right, product.rank,
                                                                     product.rows, product.columns, product.to);
}

}  // namespace ringcore
