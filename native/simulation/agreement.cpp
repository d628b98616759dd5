#include "simulation/agreement.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <utility>

#include "engine/agreement_tree.hpp"
#include "engine/record.hpp"

namespace ringcore::simulation {
namespace {

using engine::AgreementTree;
using engine::Entry;
using engine::TreeShape;

Entry announcement(int operation) {
  auto descriptor = std::make_shared<engine::Descriptor>();
  descriptor->name = "layers." + std::to_string(operation) + ".weight";
  descriptor->collective = Collective::kAllreduce;
  const std::uint64_t extents[] = {1024, 1024};
  descriptor->shape = engine::Shape::of(extents);
  Entry entry{.type = engine::RecordType::kOperation};
  entry.signature = descriptor->signature();
  entry.name_hash = descriptor->name_hash();
  entry.rows = descriptor->shape.rows();
  entry.descriptor = std::move(descriptor);
  return entry;
}

struct Member {
  explicit Member(TreeShape shape) : tree(std::move(shape)) {}
  AgreementTree tree;
  std::uint64_t position = 0;
  double busy_until = 0;
  bool due = false;  // a turn of it is queued
  std::vector<std::pair<int, std::vector<std::byte>>> inbox;  // what has arrived, from whom
  std::size_t bytes = 0;  // sent
  std::size_t records = 0;
};

// Time goes on from record to record; who is busy finds what has come meanwhile.
class Job {
 public:
  explicit Job(const Network& network) : network_(network), generator_(network.disturbance.seed) {
    for (TreeShape& shape : TreeShape::of_all(network.topology.host_of)) members_.emplace_back(std::move(shape));
  }

  // All announce these operations now. Seconds until the last member knows that all have.
  double announce(const std::vector<Entry>& entries) {
    const double begin = now_;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      for (const Entry& entry : entries) members_[m].tree.append(entry, members_[m].position++);
      wake(static_cast<int>(m), begin);
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      happen(event);
    }
    for (const Member& member : members_) now_ = std::max(now_, member.busy_until);
    return now_ - begin;
  }

  AgreementTime counts() const {
    AgreementTime most;
    for (const Member& member : members_) {
      most.step_bytes = std::max(most.step_bytes, member.bytes);
      most.step_records = std::max(most.step_records, member.records);
      const TreeShape& shape = member.tree.shape();
      most.neighbours = std::max(most.neighbours, static_cast<int>(shape.children.size()) + (shape.is_root() ? 0 : 1));
    }
    return most;
  }
  void reset_counts() {
    for (Member& member : members_) member.bytes = member.records = 0;
  }

 private:
  struct Event {
    double time = 0;
    std::uint64_t number = 0;
    int member = 0;
    int record = -1;  // that arrives; -1: the member's turn
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };
  struct Record {
    int from = 0;
    std::vector<std::byte> body;
  };

  void wake(int member, double time) {
    if (std::exchange(members_[member].due, true)) return;
    events_.push({std::max(time, members_[member].busy_until), next_number_++, member, -1});
  }

  void happen(const Event& event) {
    Member& member = members_[event.member];
    if (event.record >= 0) {
      Record& record = records_[event.record];
      member.inbox.emplace_back(record.from, std::move(record.body));
      unused_.push_back(event.record);
      return wake(event.member, event.time);
    }
    member.due = false;
    take_turn(event.member, event.time);
  }

  void take_turn(int index, double time) {
    Member& member = members_[index];
    member.busy_until = time;
    for (const auto& [from, body] : std::exchange(member.inbox, {})) {
      member.busy_until += link(from, index).message_s * slowness(index);
      member.tree.receive(from, body);
    }
    for (const auto& body : member.tree.take_up()) send(index, member.tree.shape().parent, body);
    for (const auto& body : member.tree.take_down()) {
      for (const TreeShape::Child& child : member.tree.shape().children) send(index, child.member, body);
    }
    member.tree.take_delivered();
  }

  void send(int from, int to, const std::vector<std::byte>& body) {
    Member& sender = members_[from];
    const plan::LinkCost& cost = link(from, to);
    const double slowest = std::max(slowness(from), slowness(to));
    const std::size_t bytes = sizeof(engine::ShortHeader) + body.size();
    sender.bytes += bytes;
    ++sender.records;
    sender.busy_until += cost.message_s * slowness(from);
    double arrival = sender.busy_until + cost.latency_s + static_cast<double>(bytes) * cost.seconds_per_byte * slowest;
    if (!same_host(from, to)) {
      arrival += network_.disturbance.jitter_s * static_cast<double>(generator_() >> 11) * 0x1.0p-53;
    }
    // A stream keeps its order.
    const bool up = to == sender.tree.shape().parent;
    double& last = up ? last_up_[from] : last_down_[to];
    last = arrival = std::max(arrival, last);
    events_.push({arrival, next_number_++, to, store({from, body})});
  }

  int store(Record record) {
    if (unused_.empty()) {
      records_.push_back(std::move(record));
      return static_cast<int>(records_.size()) - 1;
    }
    const int index = unused_.back();
    unused_.pop_back();
    records_[index] = std::move(record);
    return index;
  }

  bool same_host(int a, int b) const { return network_.topology.host_of[a] == network_.topology.host_of[b]; }
  const plan::LinkCost& link(int a, int b) const {
    return same_host(a, b) ? network_.topology.links.in_host : network_.topology.links.between_hosts;
  }
  double slowness(int member) const {
    const auto slow = network_.disturbance.slow_hosts.find(network_.topology.host_of[member]);
    return slow == network_.disturbance.slow_hosts.end() ? 1 : slow->second;
  }

  const Network& network_;
  std::vector<Member> members_;
  std::vector<double> last_up_ = std::vector<double>(network_.topology.host_of.size(), 0);  // by the lower end
  std::vector<double> last_down_ = last_up_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t next_number_ = 0;
  std::vector<Record> records_;  // on their way
  std::vector<int> unused_;
  double now_ = 0;
  std::mt19937_64 generator_;
};

}  // namespace

AgreementTime simulate_agreement(const Network& network, int operations) {
  Job job(network);
  std::vector<Entry> step;
  step.reserve(static_cast<std::size_t>(operations));
  for (int i = 0; i < operations; ++i) step.push_back(announcement(i));
  const double first = job.announce({step.front()});
  const double again = job.announce({step.front()});
  job.announce(step);
  job.reset_counts();
  const double known = job.announce(step);
  AgreementTime time = job.counts();
  time.first_s = first;
  time.again_s = again;
  time.step_s = known;
  return time;
}

}  // namespace ringcore::simulation
