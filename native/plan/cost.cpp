#include "plan/cost.hpp"

#include <algorithm>
#include <compare>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/streams.hpp"

namespace ringcore::plan {
namespace {

// The ways of an uneven network: which cables lie between two hosts.
class Ways {
 public:
  explicit Ways(const std::vector<Cable>& cables) : cables_(cables) {
    for (const Cable& cable : cables) places_ = std::max({places_, cable.from + 1, cable.to + 1});
  }
  // Indices of cables; none where there is no way.
  const std::vector<std::size_t>& between(int from, int to) {
    const auto [found, fresh] = known_.try_emplace({from, to});
    if (fresh) found->second = search(from, to);
    return found->second;
  }

 private:
  std::vector<std::size_t> search(int from, int to) const {
    std::vector<std::ptrdiff_t> reached_by(static_cast<std::size_t>(std::max({places_, from + 1, to + 1})), -1);
    std::deque<int> next = {from};
    while (!next.empty() && reached_by[to] < 0) {
      const int at = next.front();
      next.pop_front();
      for (std::size_t i = 0; i < cables_.size(); ++i) {
        if (cables_[i].from != at || cables_[i].to == from || reached_by[cables_[i].to] >= 0) continue;
        reached_by[cables_[i].to] = static_cast<std::ptrdiff_t>(i);
        next.push_back(cables_[i].to);
      }
    }
    std::vector<std::size_t> way;
    for (int at = to; at != from && reached_by[at] >= 0; at = cables_[way.back()].from) {
      way.push_back(static_cast<std::size_t>(reached_by[at]));
    }
    return way;
  }

  const std::vector<Cable>& cables_;
  int places_ = 0;
  std::map<std::pair<int, int>, std::vector<std::size_t>> known_;
};

// When a rank, a lane or a port is free again, in seconds. Like the verifier's execution, with every rank of an orbit at
// the same step at the same time.
class Simulation {
 public:
  Simulation(const Excerpt& plan, const Topology& topology, const CostModel& model, double chunk_bytes)
      : plan_(plan),
        topology_(topology),
        symmetry_(plan.symmetry),
        model_(model),
        chunk_bytes_(chunk_bytes),
        ways_(topology.links.cables),
        cable_free_(topology.links.cables.size(), 0),
        streams_(plan),
        waiting_(static_cast<std::size_t>(plan.symmetry.orbits()), false) {
    for (const Program& program : plan.programs) {
      time_.emplace_back(program.channels.size(), 0.0);
      next_.emplace_back(program.channels.size(), 0);
    }
    find_hosts();
  }

  double run() {
    // One step a rank and turn keeps the ranks about equally far, and with them the order in which ports are taken.
    for (int orbit = 0; orbit < symmetry_.orbits(); ++orbit) wake(orbit, 0);
    while (!due_.empty()) {
      at_ = due_.top();
      due_.pop();
      waiting_[at_.orbit] = false;
      bool moved = false;
      for (std::size_t c = 0; c < next_[at_.orbit].size(); ++c) moved = step(at_.orbit, c) || moved;
      if (moved) wake(at_.orbit, at_.turn + 1);
    }
    double last = 0;
    for (const auto& channels : time_) {
      for (const double end : channels) last = std::max(last, end);
    }
    return last;
  }

 private:
  struct Port {
    double out = 0;
    double in = 0;
  };
  struct Stream {
    Queue<double> arrivals;
    double free = 0;
  };
  struct Turn {
    std::size_t turn = 0;
    int orbit = 0;
    auto operator<=>(const Turn&) const = default;
  };

  // Hosts are images of each other where their first ranks are. `crowd_`: as many ranks of an orbit share a host.
  void find_hosts() {
    const auto hosts =
        static_cast<std::size_t>(1 + *std::max_element(topology_.host_of.begin(), topology_.host_of.end()));
    image_.assign(hosts, -1);
    crowd_.assign(hosts, 1);
    std::vector<int> count(hosts, 0);
    for (int orbit = 0; orbit < symmetry_.orbits(); ++orbit) {
      const Rank first = symmetry_.representative(orbit);
      const int own = topology_.host_of[first];
      if (image_[own] >= 0) continue;
      int images = 0;
      for (int turn = 0; turn < symmetry_.turns(); ++turn) {
        int& image = image_[topology_.host_of[symmetry_.turned(first, turn)]];
        if (image < 0) ++images;
        image = own;
      }
      crowd_[own] = symmetry_.turns() / images;
    }
    ports_.resize(hosts);
  }

  // The orbit has its turn then; once.
  void wake(int orbit, std::size_t turn) {
    if (waiting_[orbit]) return;
    waiting_[orbit] = true;
    due_.push({turn, orbit});
  }

  const LinkCost& link(Rank from, Rank to) const {
    return topology_.host_of[from] == topology_.host_of[to] ? topology_.links.in_host : topology_.links.between_hosts;
  }

  double deliver(Rank from, Rank to, double& free_at, double now, double bytes) {
    const int source = topology_.host_of[from];
    const int target = topology_.host_of[to];
    if (source == target) {
      free_at = std::max(now, free_at) + bytes * topology_.links.in_host.seconds_per_byte;
      return free_at + topology_.links.in_host.latency_s;
    }
    if (!cable_free_.empty()) return deliver_by_cables(source, target, free_at, now, bytes);
    double& out = ports_[image_[source]].out;
    double& in = ports_[image_[target]].in;
    const double start = std::max({now, free_at, out, in});
    const double alone = bytes * topology_.links.between_hosts.seconds_per_byte;
    out = start + alone * crowd_[image_[source]];
    in = start + alone * crowd_[image_[target]];
    free_at = std::max(out, in);
    return free_at + topology_.links.between_hosts.latency_s;
  }

  double deliver_by_cables(int source, int target, double& free_at, double now, double bytes) {
    double start = std::max(now, free_at);
    double slowest = 0;
    double latency = 0;
    const std::vector<std::size_t>& way = ways_.between(source, target);
    for (const std::size_t i : way) {
      const Cable& cable = topology_.links.cables[i];
      start = std::max(start, cable_free_[i]);
      slowest = std::max(slowest, cable.seconds_per_byte);
      latency += cable.latency_s;
    }
    for (const std::size_t i : way) cable_free_[i] = start + bytes * topology_.links.cables[i].seconds_per_byte;
    free_at = start + bytes * slowest;
    return free_at + latency;
  }

  bool step(int orbit, std::size_t channel) {
    const Channel& steps = plan_.programs[orbit].channels[channel];
    std::size_t& index = next_[orbit][channel];
    if (index == steps.size()) return false;
    const Step& step = steps[index];
    const Rank rank = symmetry_.representative(orbit);
    double& now = time_[orbit][channel];
    if (step.after_channel >= 0) {
      if (static_cast<int>(next_[orbit][step.after_channel]) <= step.after_step) return false;
      now = std::max(now, time_[orbit][step.after_channel]);
    }
    switch (step.kind) {
      case StepKind::kSend:
      case StepKind::kSignal: {
        now += link(rank, step.peer).message_s;
        Stream& stream = *streams_.sent(orbit, step.peer);
        const double bytes = step.kind == StepKind::kSend ? chunk_bytes_ : 0;
        stream.arrivals.push(deliver(rank, step.peer, stream.free, now, bytes));
        const int peer = symmetry_.orbit_of(step.peer);
        wake(peer, at_.turn + (peer > orbit ? 0 : 1));
        break;
      }
      case StepKind::kRecv:
      case StepKind::kRecvReduce:
      case StepKind::kWait: {
        Stream* const stream = streams_.received(orbit, step.peer);
        if (stream == nullptr || stream->arrivals.empty()) return false;
        now = std::max(now, stream->arrivals.pop()) + link(step.peer, rank).message_s;
        if (step.kind == StepKind::kRecvReduce) now += chunk_bytes_ * model_.touch_seconds_per_byte;
        break;
      }
      case StepKind::kReduce:
        now += chunk_bytes_ * model_.touch_seconds_per_byte *
               static_cast<double>(step.sources.size() + step.targets.size());
        break;
    }
    now += model_.step_s;
    ++index;
    return true;
  }

  const Excerpt& plan_;
  const Topology& topology_;
  const Symmetry& symmetry_;
  const CostModel& model_;
  double chunk_bytes_;
  Ways ways_;
  std::vector<double> cable_free_;
  std::vector<int> image_;  // of a host: the representatives' one
  std::vector<int> crowd_;
  std::vector<Port> ports_;
  std::vector<std::vector<double>> time_;       // of each channel
  std::vector<std::vector<std::size_t>> next_;  // its next step
  Streams<Stream> streams_;
  Turn at_;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> due_;
  std::vector<bool> waiting_;  // for their turn
};

// Whether every turn takes the ranks of a host to ranks of one host.
bool moves_hosts(const Symmetry& symmetry, const Topology& topology) {
  for (const int turn : symmetry.basis()) {
    std::unordered_map<int, int> image;
    for (Rank node = 0; node < symmetry.nodes(); ++node) {
      const int to = topology.host_of[symmetry.turned(node, turn)];
      const auto [found, fresh] = image.try_emplace(topology.host_of[node], to);
      if (!fresh && found->second != to) return false;
    }
  }
  return true;
}

// Whether no two ranks of an orbit share a host.
bool moves_every_host(const Symmetry& symmetry, const Topology& topology) {
  for (int orbit = 0; orbit < symmetry.orbits(); ++orbit) {
    const Rank first = symmetry.representative(orbit);
    for (int turn = 1; turn < symmetry.turns(); ++turn) {
      if (topology.host_of[symmetry.turned(first, turn)] == topology.host_of[first]) return false;
    }
  }
  return true;
}

}  // namespace

Symmetry symmetry_of_hosts(const Symmetry& symmetry, const Topology& topology, bool crowded) {
  if (topology.single_host()) return symmetry;
  for (int step = 1; topology.links.cables.empty() && step < symmetry.turns(); ++step) {
    if (symmetry.turns() % step != 0 || !symmetry.divides(step)) continue;
    Symmetry part = symmetry.subgroup(step);
    if (moves_hosts(part, topology) && (crowded || moves_every_host(part, topology))) return part;
  }
  return Symmetry::none(symmetry.nodes());
}

double least_seconds(const Plan& plan, const Topology& topology, double chunk_bytes) {
  if (!topology.links.cables.empty()) return 0;
  double sent = 0;
  double received = 0;
  double processor = 0;
  for (const Channel& channel : plan.program.channels) {
    double busy = 0;
    for (const Step& step : channel) {
      if (step.peer < 0) continue;
      const bool inside = topology.host_of[plan.self] == topology.host_of[step.peer];
      const LinkCost& link = inside ? topology.links.in_host : topology.links.between_hosts;
      busy += link.message_s;
      if (inside) continue;
      if (step.kind == StepKind::kSend) sent += chunk_bytes * link.seconds_per_byte;
      if (step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce) {
        received += chunk_bytes * link.seconds_per_byte;
      }
    }
    processor = std::max(processor, busy);
  }
  return std::max({sent, received, processor});
}

double predict_seconds(const Excerpt& excerpt, const Topology& topology, double chunk_bytes, const CostModel& model) {
  return Simulation(excerpt, topology, model, chunk_bytes).run();
}

}  // namespace ringcore::plan
