// Narrow matrices: what is orthonormal, and that every processor's kernels make the same bits of it.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/kernel_table.hpp"
#include "base/low_rank.hpp"

using namespace ringcore;

namespace {

template <class Value>
constexpr DType kDType = sizeof(Value) == 8 ? DType::kFloat64 : DType::kFloat32;

template <class Value>
std::vector<Value> random_matrix(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<Value> values(count);
  for (Value& value : values) value = static_cast<Value>(normal(engine));
  return values;
}

template <class Value>
void make_orthonormal(std::vector<Value>& matrix, std::size_t rows, std::size_t columns) {
  orthonormalise(kDType<Value>, reinterpret_cast<std::byte*>(matrix.data()), rows, columns);
}

template <class Value>
double dot(const Value* a, const Value* b, std::size_t count) {
  long double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += static_cast<long double>(a[i]) * static_cast<long double>(b[i]);
  return static_cast<double>(sum);
}

template <class Value>
void check_orthonormal(const std::vector<Value>& matrix, std::size_t rows, std::size_t columns, double off) {
  for (std::size_t one = 0; one < rows; ++one) {
    for (std::size_t other = 0; other <= one; ++other) {
      const double found = dot(matrix.data() + one * columns, matrix.data() + other * columns, columns);
      CHECK(std::abs(found - (one == other ? 1 : 0)) < off);
    }
  }
}

template <class Value>
void check_products(const kernels::KernelTable& table) {
  for (const std::size_t columns : {1, 127, 128, 300}) {
    constexpr std::size_t kRank = 3;
    constexpr std::size_t kRows = 5;
    const auto left = random_matrix<Value>(kRank * 9, 1);
    const auto right = random_matrix<Value>(kRank * columns, 2);
    std::vector<Value> to(kRows * columns, -1);
    table.narrow_product[sizeof(Value) == 8 ? 1 : 0](reinterpret_cast<const std::byte*>(left.data() + 2), 9,
                                                     reinterpret_cast<const std::byte*>(right.data()), kRank, kRows,
                                                     columns, reinterpret_cast<std::byte*>(to.data()));
    for (std::size_t i = 0; i < kRows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        // Each step is rounded by itself: a processor that multiplies and adds at once comes to other bits.
        volatile Value sum = left[2 + i] * right[j];
        for (std::size_t k = 1; k < kRank; ++k) {
          const volatile Value product = left[9 * k + 2 + i] * right[k * columns + j];
          sum = sum + product;
        }
        CHECK(to[i * columns + j] == sum);
      }
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("low rank: rows are orthonormal, whatever they were", Value, float, double) {
  const double off = sizeof(Value) == 8 ? 1e-12 : 1e-5;
  for (const std::size_t rows : {1, 2, 4, 7}) {
    for (const std::size_t columns : {7, 100, 5000}) {
      auto matrix = random_matrix<Value>(rows * columns, rows + columns);
      const auto before = matrix;
      make_orthonormal(matrix, rows, columns);
      check_orthonormal(matrix, rows, columns, off);
      // They span the same: the first one has its direction kept.
      const double length = std::sqrt(dot(before.data(), before.data(), columns));
      CHECK(std::abs(dot(before.data(), matrix.data(), columns) - length) < off * length);
    }
  }
  // Rows of zeros, and those that are multiples of others, become directions of their own.
  std::vector<Value> matrix(4 * 6, 0);
  for (std::size_t i = 0; i < 6; ++i) matrix[6 + i] = matrix[12 + i] = static_cast<Value>(i + 1);
  make_orthonormal(matrix, 4, 6);
  check_orthonormal(matrix, 4, 6, off);
  std::vector<Value> square(4 * 4, 1);
  make_orthonormal(square, 4, 4);
  check_orthonormal(square, 4, 4, off);
  // Of numbers that are none nothing is to be made: a step is left out then.
  std::vector<Value> lost(2 * 3, std::numeric_limits<Value>::quiet_NaN());
  make_orthonormal(lost, 2, 3);
  CHECK(std::isnan(lost[0]));
  std::vector<Value> partly = {std::numeric_limits<Value>::infinity(), 1, 2, 3, 4, 5};
  make_orthonormal(partly, 2, 3);
  CHECK_FALSE(std::isfinite(partly[3]));
}

TEST_CASE_TEMPLATE("low rank: every processor's kernels multiply in the same order", Value, float, double) {
  check_products<Value>(kernels::baseline::kTable);
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
  if (avx2) check_products<Value>(kernels::avx2::kTable);
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    check_products<Value>(kernels::avx512::kTable);
  }
#endif
}
