// Adasum against its definition.
#include "base/adasum.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace ringcore;

namespace {

std::vector<float> combined(const std::vector<std::vector<float>>& vectors, double scale = 1.0) {
  std::vector<const std::byte*> sources;
  for (const auto& vector : vectors) sources.push_back(reinterpret_cast<const std::byte*>(vector.data()));
  std::vector<float> target(vectors.front().size());
  adasum(DType::kFloat32, sources, reinterpret_cast<std::byte*>(target.data()), target.size(), scale);
  return target;
}

}  // namespace

TEST_CASE("Adasum adds orthogonal vectors, averages equal ones, and does both in between") {
  CHECK(combined({{3, 0}, {0, 5}}) == std::vector<float>{3, 5});
  CHECK(combined({{2, 4}, {2, 4}}) == std::vector<float>{2, 4});
  CHECK(combined({{2, 4}, {2, 4}}, 0.5) == std::vector<float>{1, 2});
  // a.b = 1, |a|^2 = 1, |b|^2 = 2: a / 2 + b * 3 / 4.
  CHECK(combined({{1, 0}, {1, 1}}) == std::vector<float>{1.25F, 0.75F});
  CHECK(combined({{0, 0}, {7, 1}}) == std::vector<float>{7, 1});
  // Pairs first, then the pairs; one that is left over comes last.
  CHECK(combined({{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}) == std::vector<float>{1, 1, 1});
  CHECK(combined({{4, 0}, {4, 0}, {0, 2}, {0, 2}}) == std::vector<float>{4, 2});
}

TEST_CASE("Adasum of bfloat16 rounds to the nearest") {
  // 1 + 2^-7 is the next number after 1; orthogonal parts keep their values.
  const std::vector<std::uint16_t> a{0x3f81, 0}, b{0, 0x3f81};
  const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(a.data()),
                                      reinterpret_cast<const std::byte*>(b.data())};
  std::vector<std::uint16_t> target(2);
  adasum(DType::kBFloat16, sources, reinterpret_cast<std::byte*>(target.data()), 2, 1.0);
  CHECK(target == std::vector<std::uint16_t>{0x3f81, 0x3f81});
}

TEST_CASE("Adasum rounds to 16 bits once, not by way of a float") {
  const auto rounded = [](DType dtype, std::uint16_t one, double factor) {
    const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(&one)};
    std::uint16_t target = 0;
    adasum(dtype, sources, reinterpret_cast<std::byte*>(&target), 1, factor);
    return target;
  };
  // A little more than halfway between two numbers; as a float exactly halfway, from where it goes to the even one.
  CHECK(rounded(DType::kFloat16, 0x3c00, 1 + 0x1p-11 + 0x1p-40) == 0x3c01);
  CHECK(rounded(DType::kFloat16, 0x3c00, -1 - 0x1p-11 - 0x1p-40) == 0xbc01);
  CHECK(rounded(DType::kBFloat16, 0x3f80, 1 + 0x1p-8 + 0x1p-40) == 0x3f81);
  // A little less: the float lies beyond the double.
  CHECK(rounded(DType::kFloat16, 0x3c00, 1 + 3 * 0x1p-11 - 0x1p-35) == 0x3c01);
  CHECK(rounded(DType::kFloat16, 0x3c00, 0x1p200) == 0x7c00);
  CHECK(rounded(DType::kFloat16, 0x3c00, 0x1p-200) == 0);
}
