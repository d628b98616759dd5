#include "transport/crowd.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <climits>
#include <fstream>
#include <string>

#include <sched.h>
#include <unistd.h>

namespace ringcore::transport {
namespace {

template <class Value>
Value load(const Value& shared) {
  return std::atomic_ref(const_cast<Value&>(shared)).load(std::memory_order_relaxed);
}

template <class Value>
void store(Value& shared, Value value) {
  std::atomic_ref(shared).store(value, std::memory_order_relaxed);
}

// "200000 100000" are two processors, "max 100000" all.
std::optional<int> quota_of(const std::filesystem::path& group) {
  std::ifstream file(group / "cpu.max");
  long quota = 0;
  long period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::clamp<long>((quota + period - 1) / period, 1, INT_MAX));
}

}  // namespace

Processors allowed_processors() {
  Processors allowed{};
  cpu_set_t set;
  if (::sched_getaffinity(::getpid(), sizeof(set), &set) != 0) return allowed;
  for (std::size_t i = 0; i < allowed.size() * 64 && i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) allowed[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  return allowed;
}

int count(const Processors& processors) {
  int sum = 0;
  for (const std::uint64_t word : processors) sum += std::popcount(word);
  return sum;
}

std::optional<int> processor_quota(const std::filesystem::path& hierarchy, const std::filesystem::path& own) {
  std::ifstream groups(own);
  std::string line;
  while (std::getline(groups, line) && !line.starts_with("0::/")) {
  }
  if (!line.starts_with("0::/")) return std::nullopt;
  std::optional<int> least;
  std::filesystem::path group = line.substr(4);
  while (true) {
    const std::optional<int> quota = quota_of(hierarchy / group);
    if (quota) least = std::min(least.value_or(INT_MAX), *quota);
    if (group.empty()) return least;
    group = group.parent_path();
  }
}

void Crowd::meet(std::span<Link* const> links) {
  neighbours_.clear();
  said_ = 0;
  for (Link* link : links) {
    if (link->own_standing() != nullptr) neighbours_.push_back({link->own_standing(), link->peer_standing()});
  }
  count_processors();
}

void Crowd::count_processors() {
  const Processors own = allowed_processors();
  Processors all = own;
  for (const Neighbour& neighbour : neighbours_) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      store(neighbour.own->allowed[i], own[i]);
      all[i] |= load(neighbour.peer->allowed[i]);
    }
  }
  too_few_ = ranks_ > std::min(std::max(count(all), 1), quota_.value_or(INT_MAX));
}

bool Crowd::shares_processor() {
  const auto here = static_cast<std::uint32_t>(::sched_getcpu() + 1);
  const bool moved = here != said_;
  said_ = here;
  bool together = false;
  for (const Neighbour& neighbour : neighbours_) {
    if (moved) store(neighbour.own->processor_plus_1, here);
    together = together || load(neighbour.peer->processor_plus_1) == here;
  }
  return too_few_ || (together && here != 0);
}

std::optional<Nanoseconds> Crowd::rung_since(Nanoseconds since) const {
  Nanoseconds last = since;
  for (const Neighbour& neighbour : neighbours_) last = std::max(last, load(neighbour.peer->rung_at));
  return last > since ? std::optional(last) : std::nullopt;
}

}  // namespace ringcore::transport
