// Reads JSON strictly, value by value, as whoever calls expects them. What is wrong is told with its line and column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ringcore::plan {

class JsonReader {
 public:
  // The text outlives it.
  explicit JsonReader(std::string_view text) : text_(text) {}

  // Calls `member` with each key, at the key's value. Keys that are none of `keys`, or come again, are refused; at most
  // 32 keys.
  template <class Member>
  void object(std::string_view what, std::span<const std::string_view> keys, Member member) {
    open('{', what);
    std::uint32_t seen = 0;
    for (bool first = true; more('}', first, what); first = false) {
      const std::size_t index = key(what, keys, seen);
      seen |= 1U << index;
      member(keys[index]);
    }
  }
  template <class Element>
  void array(std::string_view what, Element element) {
    open('[', what);
    for (bool first = true; more(']', first, what); first = false) element();
  }
  std::int64_t integer(std::string_view what, std::int64_t least, std::int64_t most);
  bool boolean(std::string_view what);
  // Of printable ASCII, without escapes.
  std::string string(std::string_view what, std::size_t most);
  bool at_object() { return peek() == '{'; }
  // Nothing may follow.
  void end();
  // Throws Error{kInvalidArgument} with the place of what was read last.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  char peek();
  void open(char bracket, std::string_view what);
  bool more(char bracket, bool first, std::string_view what);
  std::size_t key(std::string_view what, std::span<const std::string_view> keys, std::uint32_t seen);
  [[noreturn]] void unexpected(std::string_view what, std::string_view accepted);

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t last_ = 0;  // where the value began that was read last
};

}  // namespace ringcore::plan
