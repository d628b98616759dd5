#include "plan/symmetry.hpp"

#include <numeric>
#include <utility>

namespace ringcore::plan {
namespace {

std::vector<Rank> in_order(int nodes) {
  std::vector<Rank> all(static_cast<std::size_t>(nodes));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

Symmetry Symmetry::none(int nodes) { return {{}, in_order(nodes)}; }

Symmetry Symmetry::circle(int nodes) { return {{nodes}, in_order(nodes)}; }

Symmetry Symmetry::exclusive_or(int nodes) {
  std::vector<int> radices;
  for (int count = nodes; count > 1; count /= 2) radices.push_back(2);
  return {std::move(radices), in_order(nodes)};
}

Symmetry::Symmetry(std::vector<int> radices, std::vector<Rank> node_at)
    : radices_(std::move(radices)), node_at_(std::move(node_at)), seat_of_(node_at_.size()) {
  for (std::size_t seat = 0; seat < node_at_.size(); ++seat) seat_of_[node_at_[seat]] = static_cast<int>(seat);
  for (const int radix : radices_) turns_ *= radix;
  if (!radices_.empty()) lower_ = turns_ / radices_.front();
}

int Symmetry::sum(int turn, int other) const {
  int result = 0;
  int weight = 1;
  for (auto radix = radices_.rbegin(); radix != radices_.rend(); ++radix) {
    result += (turn / weight + other / weight) % *radix * weight;
    weight *= *radix;
  }
  return result;
}

int Symmetry::inverse(int turn) const {
  int result = 0;
  int weight = 1;
  for (auto radix = radices_.rbegin(); radix != radices_.rend(); ++radix) {
    result += (*radix - turn / weight % *radix) % *radix * weight;
    weight *= *radix;
  }
  return result;
}

std::vector<int> Symmetry::basis() const {
  std::vector<int> weights;
  int weight = 1;
  for (auto radix = radices_.rbegin(); radix != radices_.rend(); weight *= *radix++) weights.push_back(weight);
  return weights;
}

bool Symmetry::fits(const Header& header) const {
  const auto blocks = static_cast<std::uint32_t>(nodes());
  return header.nodes == nodes() && (!data_moves_ || header.chunks % blocks == 0) &&
         (!scratch_moves_ || header.scratch_chunks % blocks == 0);
}

std::uint32_t Symmetry::turned(const Header& header, Buffer buffer, std::uint32_t chunk, int turn) const {
  const bool scratch = buffer == Buffer::kScratch;
  if (turn == 0 || !(scratch ? scratch_moves_ : data_moves_)) return chunk;
  const std::uint32_t parts = (scratch ? header.scratch_chunks : header.chunks) / static_cast<std::uint32_t>(nodes());
  const Rank block = static_cast<Rank>(chunk / parts);
  return static_cast<std::uint32_t>(turned(block, turn)) * parts + chunk % parts;
}

Program Symmetry::turned(const Header& header, const Program& program, int turn) const {
  Program result = program;
  if (turn == 0) return result;
  const auto turn_ref = [&](const ChunkRef& ref) {
    return ChunkRef{turned(ref.rank, turn), ref.buffer, turned(header, ref.buffer, ref.chunk, turn)};
  };
  // What is listed in the order of the ranks is so again.
  const auto turn_refs = [&](std::vector<ChunkRef>& refs) {
    const std::vector<ChunkRef> before = refs;
    const bool by_rank = header.accumulates_once && refs.size() == static_cast<std::size_t>(nodes());
    for (std::size_t i = 0; i < before.size(); ++i) {
      refs[by_rank ? static_cast<std::size_t>(turned(static_cast<Rank>(i), turn)) : i] = turn_ref(before[i]);
    }
  };
  for (Channel& channel : result.channels) {
    for (Step& step : channel) {
      if (step.peer >= 0) step.peer = turned(step.peer, turn);
      turn_refs(step.sources);
      turn_refs(step.targets);
    }
  }
  return result;
}

bool Symmetry::divides(int step) const {
  int product = 1;
  for (auto radix = radices_.rbegin(); radix != radices_.rend(); ++radix) {
    if (step <= product * *radix) return step % product == 0 && *radix % (step / product) == 0;
    product *= *radix;
  }
  return step == 1;
}

Symmetry Symmetry::subgroup(int step) const {
  std::vector<int> radices = radices_;
  int left = step;
  while (left > 1) {
    const int lowest = radices.back();
    radices.pop_back();
    if (lowest > left) radices.push_back(lowest / left);
    left = lowest > left ? 1 : left / lowest;
  }
  std::vector<Rank> node_at;
  node_at.reserve(node_at_.size());
  for (int orbit = 0; orbit < orbits(); ++orbit) {
    for (int rest = 0; rest < step; ++rest) {
      for (int turn = 0; turn < turns_; turn += step) node_at.push_back(node_at_[orbit * turns_ + turn + rest]);
    }
  }
  Symmetry result(std::move(radices), std::move(node_at));
  result.data_moves_ = data_moves_;
  result.scratch_moves_ = scratch_moves_;
  return result;
}

}  // namespace ringcore::plan
