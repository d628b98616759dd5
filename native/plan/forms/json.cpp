#include "plan/forms/json.hpp"

#include <algorithm>
#include <charconv>

#include "base/error.hpp"

namespace ringcore::plan {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_printable(char c) { return c >= ' ' && c <= '~'; }

}  // namespace

void JsonReader::fail(const std::string& what) const {
  const std::string_view before = text_.substr(0, last_);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  throw Error(ErrorKind::kInvalidArgument,
              "line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + what);
}

// The next character that is no space, '\0' at the end. Nothing in JSON is a '\0'.
char JsonReader::peek() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  last_ = at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::unexpected(std::string_view what, std::string_view accepted) {
  const char found = peek();
  const std::string seen = at_ == text_.size()   ? "the text ends"
                           : is_printable(found) ? "there is '" + std::string(1, found) + "'"
                                                 : "there is a byte that is no printable character";
  fail(std::string(what) + " is " + std::string(accepted) + ", but " + seen);
}

void JsonReader::open(char bracket, std::string_view what) {
  if (peek() != bracket) unexpected(what, bracket == '{' ? "an object, in { }" : "a list, in [ ]");
  ++at_;
}

bool JsonReader::more(char bracket, bool first, std::string_view what) {
  const char next = peek();
  if (next == bracket) return ++at_, false;
  if (first) return true;
  if (next != ',') unexpected(what, "continued with ',' or ended with '" + std::string(1, bracket) + "'");
  ++at_;
  if (peek() == bracket) unexpected(what, "a list without a ',' behind its last element");
  return true;
}

std::size_t JsonReader::key(std::string_view what, std::span<const std::string_view> keys, std::uint32_t seen) {
  const std::string name = string("a key of " + std::string(what), 64);
  const auto found = std::find(keys.begin(), keys.end(), name);
  if (found == keys.end()) {
    std::string accepted;
    for (const std::string_view each : keys) accepted.append(accepted.empty() ? "" : ", ").append(each);
    fail(std::string(what) + " has no '" + name + "'; it may have: " + accepted);
  }
  const auto index = static_cast<std::size_t>(found - keys.begin());
  if ((seen >> index & 1U) != 0) fail(std::string(what) + " has '" + name + "' twice; leave one of them out");
  if (peek() != ':') unexpected("the key '" + name + "'", "followed by ':'");
  ++at_;
  return index;
}

std::int64_t JsonReader::integer(std::string_view what, std::int64_t least, std::int64_t most) {
  const std::string accepted = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  peek();
  const char* const end = text_.data() + text_.size();
  std::int64_t value = 0;
  const auto [stop, problem] = std::from_chars(text_.data() + at_, end, value);
  if (problem == std::errc::invalid_argument) unexpected(what, accepted);
  const bool goes_on = stop != end && (*stop == '.' || *stop == 'e' || *stop == 'E');
  if (problem != std::errc() || goes_on || value < least || value > most) {
    const std::string_view rest = text_.substr(at_, 24);
    const std::size_t length = rest.find_first_not_of("+-.0123456789eE");
    fail(std::string(what) + " is " + accepted + ", but there is " + std::string(rest.substr(0, length)));
  }
  at_ = static_cast<std::size_t>(stop - text_.data());
  return value;
}

bool JsonReader::boolean(std::string_view what) {
  peek();
  for (const std::string_view word : {"true", "false"}) {
    if (text_.substr(at_, word.size()) != word) continue;
    at_ += word.size();
    return word == "true";
  }
  unexpected(what, "true or false");
}

std::string JsonReader::string(std::string_view what, std::size_t most) {
  if (peek() != '"') unexpected(what, "a text in \" \"");
  const std::size_t begin = at_ + 1;
  const std::size_t end = text_.find('"', begin);
  if (end == std::string_view::npos) fail(std::string(what) + " has no \" at its end");
  const std::string_view value = text_.substr(begin, end - begin);
  const auto plain = [](char c) { return is_printable(c) && c != '\\'; };
  if (value.size() > most || !std::all_of(value.begin(), value.end(), plain)) {
    fail(std::string(what) + " is a text of at most " + std::to_string(most) +
         " printable ASCII characters without \\, but there is another one");
  }
  at_ = end + 1;
  return std::string(value);
}

void JsonReader::end() {
  if (peek() != '\0' || at_ != text_.size()) fail("the text goes on behind its end; leave out what follows");
}

}  // namespace ringcore::plan
