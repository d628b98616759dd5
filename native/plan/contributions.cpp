#include "plan/contributions.hpp"

#include <algorithm>
#include <utility>

namespace ringcore::plan {

std::optional<int> Contributions::add(const Contributions& other) {
  if (other.runs_.empty()) return std::nullopt;
  if (runs_.empty() || runs_.back().end < other.runs_.front().begin) {
    runs_.insert(runs_.end(), other.runs_.begin(), other.runs_.end());
    return std::nullopt;
  }
  if (other.runs_.size() == 1 && runs_.back().end == other.runs_[0].begin) {
    runs_.back().end = other.runs_[0].end;
    return std::nullopt;
  }
  const auto earlier = [](const Run& a, const Run& b) { return a.begin < b.begin; };
  const auto middle = static_cast<std::ptrdiff_t>(runs_.size());
  runs_.insert(runs_.end(), other.runs_.begin(), other.runs_.end());
  std::inplace_merge(runs_.begin(), runs_.begin() + middle, runs_.end(), earlier);
  for (std::size_t i = 1; i < runs_.size(); ++i) {
    if (runs_[i].begin < runs_[i - 1].end) return runs_[i].begin;
  }
  join_neighbours();
  return std::nullopt;
}

void Contributions::join_neighbours() {
  std::size_t kept = 0;
  for (std::size_t i = 1; i < runs_.size(); ++i) {
    if (runs_[i].begin == runs_[kept].end) {
      runs_[kept].end = runs_[i].end;
    } else {
      runs_[++kept] = runs_[i];
    }
  }
  if (!runs_.empty()) runs_.resize(kept + 1);
}

int Contributions::count() const {
  int count = 0;
  for (const Run& run : runs_) count += run.end - run.begin;
  return count;
}

void Contributions::turn(const Symmetry& symmetry, int turn) {
  if (turn == 0 || count() == symmetry.nodes()) return;
  const int turns = symmetry.turns();
  std::vector<Run> turned;
  const auto place = [&](int orbit, int begin, int end) { turned.push_back({orbit + begin, orbit + end}); };
  for (const Run& run : runs_) {
    for (int begin = run.begin; begin < run.end;) {
      const int orbit = begin / turns * turns;  // its first seat
      const int end = std::min(run.end, orbit + turns);
      if (!symmetry.keeps_order(turn)) {
        const int seat = symmetry.sum(begin - orbit, turn);
        place(orbit, seat, seat + 1);
        ++begin;
        continue;
      }
      const int from = (begin - orbit + turn) % turns;
      const int to = from + end - begin;
      place(orbit, from, std::min(to, turns));
      if (to > turns) place(orbit, 0, to - turns);
      begin = end;
    }
  }
  std::sort(turned.begin(), turned.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  runs_ = std::move(turned);
  join_neighbours();
}

}  // namespace ringcore::plan
