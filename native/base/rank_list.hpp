// Ranks as messages name them.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"

namespace ringcore {

// Ascending ranks, for people: "rank 3", "ranks 0, 2 to 7"; of a thousand the first, and how many more.
inline std::string list_ranks(const std::vector<Rank>& ranks) {
  constexpr int kMostRuns = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  int runs = 0;
  for (std::size_t first = 0, next = 0; first < ranks.size(); first = next) {
    if (++runs > kMostRuns) return text + " and " + std::to_string(ranks.size() - first) + " more";
    for (next = first + 1; next < ranks.size() && ranks[next] == ranks[next - 1] + 1;) ++next;
    if (next - first == 2) --next;  // two are listed
    text += (first > 0 ? ", " : "") + std::to_string(ranks[first]);
    if (next - first > 2) text += " to " + std::to_string(ranks[next - 1]);
  }
  return text;
}

}  // namespace ringcore
