// What is fuzzed: functions of bytes that a peer, a file or a user may have written.
//
// A target may throw nothing, and aborts where something is wrong that no sanitizer sees (`require`). A new target is a
// function in a file of this folder, a line in main.cpp, and a folder in corpus/, whose files the C++ tests run as well
// (tests/fuzz_corpus_test.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace ringcore::fuzz {

using Bytes = std::span<const std::byte>;

struct Target {
  std::string_view name;
  void (*run)(Bytes input);
};

// All of them.
std::span<const Target> targets();

void require(bool holds, const char* what);

// Takes numbers and pieces from the front of what the fuzzer has made up; zeros and nothing behind its end.
class Input {
 public:
  explicit Input(Bytes bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  template <typename Number>
    requires std::is_trivially_copyable_v<Number>
  Number take() {
    Number number{};
    const std::size_t size = bytes_.size() < sizeof(number) ? bytes_.size() : sizeof(number);
    if (size > 0) std::memcpy(&number, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return number;
  }
  std::size_t below(std::size_t bound) { return take<std::uint8_t>() % bound; }
  bool flip() { return (take<std::uint8_t>() & 1) != 0; }
  Bytes piece(std::size_t bytes) {
    const Bytes taken = bytes_.first(bytes_.size() < bytes ? bytes_.size() : bytes);
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  Bytes rest() { return piece(bytes_.size()); }

 private:
  Bytes bytes_;
};

}  // namespace ringcore::fuzz
