#include "sim_library.hpp"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/reduce.hpp"

namespace ringcore::simulation {
namespace {

using Meeting = SimMeetings::Meeting;

void reduce(const Meeting& meeting) {
  const plan::Operands& first = meeting.operands.front();
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  // In the order of the members, so that the bits are the same whoever came first.
  for (int m = 0; m < static_cast<int>(meeting.who.size()); ++m) {
    for (std::size_t i = 0; i < meeting.who.size(); ++i) {
      if (meeting.who[i] == m) sources.push_back(targets.emplace_back(meeting.operands[i].data));
    }
  }
  const std::size_t count = first.data_layout.size(0);
  std::vector<std::byte> sum(count * size_of(first.dtype));
  std::byte* const to[] = {sum.data()};
  if (count == 0) return;
  reduce_many(first.dtype, first.op, sources, to, count, first.final_scale);
  for (std::byte* target : targets) std::memcpy(target, sum.data(), sum.size());
}

void broadcast(const Meeting& meeting, Rank root) {
  const plan::Operands& first = meeting.operands.front();
  const std::size_t bytes = first.data_layout.size(0) * size_of(first.dtype);
  const std::byte* from = nullptr;
  for (std::size_t i = 0; i < meeting.who.size(); ++i) {
    if (meeting.who[i] == root) from = meeting.operands[i].data;
  }
  for (const plan::Operands& each : meeting.operands) {
    if (bytes > 0 && each.data != from) std::memcpy(each.data, from, bytes);
  }
}

class SimLibraryRun final : public plan::Run {
 public:
  SimLibraryRun(SimMeetings& meetings, int self, transport::SimNetwork& network, plan::Query query,
                plan::Operands operands, int lane)
      : meetings_(meetings),
        self_(self),
        network_(network),
        query_(query),
        operands_(std::move(operands)),
        lane_(lane) {}

  bool progress() override {
    if (meeting_ == nullptr) {
      meeting_ = meetings_.join(self_, lane_, query_, operands_);
      return true;
    }
    if (done_ || !meeting_->ended) return false;
    const Nanoseconds now = network_.clock().now();
    if (!seen_at_) seen_at_ = now + static_cast<Nanoseconds>(network_.random_below(kMillisecond));
    return done_ = now >= *seen_at_;
  }
  bool done() const override { return done_; }
  bool in_use() const override { return meeting_ != nullptr && !done_; }
  bool waits_for(Rank rank) const override { return !done_ && rank != self_; }
  std::string waiting_for() const override { return "the library"; }

 private:
  SimMeetings& meetings_;
  int self_;
  transport::SimNetwork& network_;
  plan::Query query_;
  plan::Operands operands_;
  int lane_;
  std::shared_ptr<Meeting> meeting_;
  std::optional<Nanoseconds> seen_at_;
  bool done_ = false;
};

class SimLibrary final : public plan::Backend {
 public:
  SimLibrary(std::shared_ptr<SimMeetings> meetings, int self, transport::SimNetwork& network)
      : meetings_(std::move(meetings)), self_(self), network_(network) {}

  std::string_view name() const override { return "library"; }
  bool offers(const plan::Query& query) const override {
    return query.bytes > 0 &&
           (query.collective == Collective::kAllreduce || query.collective == Collective::kBroadcast);
  }
  double predict_seconds(const plan::Query&, std::size_t) const override { return 0; }
  std::unique_ptr<plan::Run> start(const plan::Query& query, plan::Operands operands, int lane) override {
    return std::make_unique<SimLibraryRun>(*meetings_, self_, network_, query, std::move(operands), lane);
  }

 private:
  std::shared_ptr<SimMeetings> meetings_;
  int self_;
  transport::SimNetwork& network_;
};

}  // namespace

std::shared_ptr<Meeting> SimMeetings::join(int member, int lane, const plan::Query& query,
                                           const plan::Operands& operands) {
  Lane& own = lanes_[static_cast<std::size_t>(lane)];
  own.next.resize(static_cast<std::size_t>(members_));
  const std::size_t number = own.next[static_cast<std::size_t>(member)]++;
  while (own.meetings.size() <= number) own.meetings.push_back(std::make_shared<Meeting>());
  const std::shared_ptr<Meeting> meeting = own.meetings[number];
  meeting->operands.push_back(operands);
  meeting->who.push_back(member);
  if (static_cast<int>(meeting->who.size()) < members_) return meeting;
  query.collective == Collective::kAllreduce ? reduce(*meeting) : broadcast(*meeting, query.root);
  meeting->ended = true;
  return meeting;
}

std::unique_ptr<plan::Backend> make_sim_library(std::shared_ptr<SimMeetings> meetings, int self,
                                                transport::SimNetwork& network) {
  return std::make_unique<SimLibrary>(std::move(meetings), self, network);
}

}  // namespace ringcore::simulation
