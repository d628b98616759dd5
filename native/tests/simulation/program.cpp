#include "program.hpp"

#include <algorithm>

namespace ringcore::simulation {
namespace {

bool is_member(const std::vector<Rank>& members, Rank rank) { return std::ranges::binary_search(members, rank); }

// All ranks have the same in mind; some of them forget one, or come to it at another time.
std::vector<std::size_t> draw_order(Draw& draw, const Program& program, Rank rank) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < program.shared.size(); ++i) {
    if (is_member(program.sets[program.shared[i].set], rank) && !draw.one_in(40)) order.push_back(i);
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (draw.one_in(12)) std::swap(order[i - 1], order[i]);
  }
  return order;
}

// One after the other in calls that wait, or several under way at once.
void add_steps(Draw& draw, std::vector<Step>& steps, std::size_t shared, std::vector<std::size_t>& open) {
  if (draw.one_in(6)) {
    steps.push_back({.kind = Step::Kind::kCompute, .duration = draw.below(4000) * kMillisecond});
  }
  steps.push_back({.kind = Step::Kind::kSubmit, .shared = shared});
  open.push_back(shared);
  while (!open.empty() && !draw.one_in(3)) {
    const auto which = open.begin() + draw.below(static_cast<int>(open.size()));
    steps.push_back({.kind = Step::Kind::kWait, .shared = *which});
    open.erase(which);
  }
}

}  // namespace

Program draw_program(Draw& draw) {
  Program program;
  program.ranks = 2 + draw.below(4);
  program.sets.emplace_back();
  for (Rank rank = 0; rank < program.ranks; ++rank) program.sets[0].push_back(rank);
  for (int left = draw.below(3); left > 0; --left) {
    std::vector<Rank> members;
    for (Rank rank = 0; rank < program.ranks; ++rank) {
      if (!draw.one_in(3)) members.push_back(rank);
    }
    if (members.size() >= 2) program.sets.push_back(std::move(members));
  }
  for (int left = 1 + draw.below(8); left > 0; --left) {
    const bool barrier = draw.one_in(8);
    program.shared.push_back({static_cast<std::size_t>(draw.below(static_cast<int>(program.sets.size()))),
                              barrier ? Collective::kBarrier : Collective::kAllreduce});
  }
  program.threads.resize(static_cast<std::size_t>(program.ranks));
  for (Rank rank = 0; rank < program.ranks; ++rank) {
    auto& threads = program.threads[static_cast<std::size_t>(rank)];
    threads.resize(static_cast<std::size_t>(draw.one_in(2) ? 1 : 1 + draw.below(3)));
    std::vector<std::vector<std::size_t>> open(threads.size());
    for (const std::size_t shared : draw_order(draw, program, rank)) {
      const auto thread = static_cast<std::size_t>(draw.below(static_cast<int>(threads.size())));
      add_steps(draw, threads[thread], shared, open[thread]);
    }
    for (std::size_t thread = 0; thread < threads.size(); ++thread) {
      for (const std::size_t shared : open[thread]) {
        threads[thread].push_back({.kind = Step::Kind::kWait, .shared = shared});
      }
    }
  }
  program.shared.push_back({0, Collective::kBarrier});
  return program;
}

std::vector<std::vector<std::size_t>> ends_of(const Program& program) {
  std::vector<std::vector<std::size_t>> ends;
  for (const auto& threads : program.threads) ends.emplace_back(threads.size(), 0);
  std::vector<std::set<Rank>> submitted(program.shared.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (Rank rank = 0; rank < program.ranks; ++rank) {
      const auto& threads = program.threads[static_cast<std::size_t>(rank)];
      for (std::size_t t = 0; t < threads.size(); ++t) {
        std::size_t& at = ends[static_cast<std::size_t>(rank)][t];
        for (; at < threads[t].size(); ++at, moved = true) {
          const Step& step = threads[t][at];
          if (step.kind == Step::Kind::kSubmit) submitted[step.shared].insert(rank);
          const std::size_t members = program.sets[program.shared[step.shared].set].size();
          if (step.kind == Step::Kind::kWait && submitted[step.shared].size() < members) break;
        }
      }
    }
  }
  return ends;
}

}  // namespace ringcore::simulation
