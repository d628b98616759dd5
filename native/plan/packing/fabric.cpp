#include "plan/packing/fabric.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include "plan/ways.hpp"

namespace ringcore::plan {
namespace {

class Weaver {
 public:
  explicit Weaver(const Topology& topology)
      : topology_(topology), ways_(topology), hosts_(topology.hosts()), first_(static_cast<std::size_t>(hosts_), -1) {
    for (Rank node = topology.nodes() - 1; node >= 0; --node) first_[topology.host_of[node]] = node;
  }

  Fabric weave() {
    Fabric fabric{.nodes = topology_.nodes()};
    for (Rank node = 0; node < fabric.nodes; ++node) {
      for (int way = 0; way < 2; ++way) fabric.rates.push_back(1 / topology_.links.in_host.seconds_per_byte);
    }
    if (topology_.links.cables.empty()) {
      for (int host = 0; host < hosts_; ++host) {
        for (int way = 0; way < 2; ++way) fabric.rates.push_back(1 / topology_.links.port_seconds_per_byte(host));
      }
    }
    for (const Cable& cable : topology_.links.cables) fabric.rates.push_back(1 / cable.seconds_per_byte);
    for (Rank from = 0; from < fabric.nodes; ++from) {
      for (Rank to = 0; to < fabric.nodes; ++to) {
        if (from == to) continue;
        if (auto through = between(from, to)) fabric.arcs.push_back({from, to, *std::move(through)});
      }
    }
    return fabric;
  }

 private:
  std::optional<std::vector<std::uint32_t>> between(Rank from, Rank to) {
    const int host = topology_.host_of[from];
    const int other = topology_.host_of[to];
    const auto number = [](int index) { return static_cast<std::uint32_t>(index); };
    if (host == other) return std::vector{number(2 * from), number(2 * to + 1)};
    if (first_[host] != from || first_[other] != to) return std::nullopt;
    const int behind_nodes = 2 * topology_.nodes();
    const std::vector<Cable>& cables = topology_.links.cables;
    if (cables.empty()) return std::vector{number(behind_nodes + 2 * host), number(behind_nodes + 2 * other + 1)};
    std::vector<std::uint32_t> through;
    for (const std::size_t cable : ways_.between(host, other)) {
      if (cables[cable].from != host && cables[cable].from < hosts_) return std::nullopt;
      through.push_back(number(behind_nodes + static_cast<int>(cable)));
    }
    return through.empty() ? std::nullopt : std::optional(std::move(through));
  }

  const Topology& topology_;
  Ways ways_;
  int hosts_;
  std::vector<Rank> first_;  // by host
};

}  // namespace

Fabric Fabric::of(const Topology& topology) { return Weaver(topology).weave(); }

Fabric Fabric::reversed() const {
  Fabric fabric{.nodes = nodes, .rates = rates};
  for (const Arc& arc : arcs) fabric.arcs.push_back({arc.to, arc.from, {arc.through.rbegin(), arc.through.rend()}});
  const auto before = [](const Arc& a, const Arc& b) { return std::tie(a.from, a.to) < std::tie(b.from, b.to); };
  std::sort(fabric.arcs.begin(), fabric.arcs.end(), before);
  return fabric;
}

const Arc* Fabric::arc(Rank from, Rank to) const {
  const auto before = [](const Arc& arc, std::pair<Rank, Rank> ends) {
    return std::tie(arc.from, arc.to) < std::tie(ends.first, ends.second);
  };
  const auto found = std::lower_bound(arcs.begin(), arcs.end(), std::pair(from, to), before);
  return found != arcs.end() && found->from == from && found->to == to ? &*found : nullptr;
}

}  // namespace ringcore::plan
