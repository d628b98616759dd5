// The hash that ranks compare their memory by (base/hash.hpp), against the values of xxHash's own library.
#include <doctest/doctest.h>

#include <numeric>
#include <string_view>
#include <vector>

#include "base/hash.hpp"

using namespace ringcore;

namespace {

std::uint64_t hash_of_text(std::string_view text) { return hash_of(std::as_bytes(std::span(text))); }

}  // namespace

TEST_CASE("hashes are those of XXH64") {
  CHECK(hash_of_text("") == 0xef46db3751d8e999);
  CHECK(hash_of_text("a") == 0xd24ec4f1a98c6e5b);
  CHECK(hash_of_text("abc") == 0x44bc2cf5ad770999);
  std::vector<unsigned char> counted(100);  // stripes, words, half a word; with one more byte, that too
  std::iota(counted.begin(), counted.end(), static_cast<unsigned char>(0));
  CHECK(hash_of(std::as_bytes(std::span(counted))) == 0x6ac1e58032166597);
  CHECK(hash_of(std::as_bytes(std::span(counted).first(99))) == 0x35e840c95abbc960);
}

TEST_CASE("values whose signs have changed have another hash, also where two of them have") {
  std::vector<double> values(64, 1.0);
  const std::uint64_t before = hash_of(std::as_bytes(std::span(values)));
  values[0] = values[4] = -1.0;  // of one lane
  CHECK(hash_of(std::as_bytes(std::span(values))) != before);
}
