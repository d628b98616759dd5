// Products of narrow matrices, whose numbers have the same bits on every processor: those of a job's ranks may differ, and
// gradients that ranks make of the same factors are to be the same. Libraries of linear algebra take other ways, and round
// otherwise, on each.
#pragma once

#include <cstddef>

#include "base/types.hpp"

namespace ringcore {

// float32 and float64.
bool can_be_narrow(DType dtype);

// Makes the rows of a matrix orthonormal, in place, each of what it has besides those before it: by Gram and Schmidt's
// process, twice, which is enough (Giraud, Langou & Rozložník, 2005). A row that has nothing besides them becomes another
// direction, so that an iteration which begins with it may find something there. At most as many rows as columns.
void orthonormalise(DType dtype, std::byte* matrix, std::size_t rows, std::size_t columns);

// to[i][j] = left[0][begin + i] * right[0][j] + left[1][begin + i] * right[1][j] + ..., in that order.
struct NarrowProduct {
  const std::byte* left = nullptr;
  std::size_t left_columns = 0;
  std::size_t begin = 0;
  const std::byte* right = nullptr;
  std::size_t rank = 0;  // rows of `left` and `right`
  std::size_t rows = 0;  // of `to`
  std::size_t columns = 0;  // of `right` and `to`
  std::byte* to = nullptr;
};
void multiply(DType dtype, const NarrowProduct& product);

}  // namespace ringcore
