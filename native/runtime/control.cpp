// What is asked of the engine, and changed in it, by those who wait for none of its operations.
#include <chrono>
#include <utility>

#include "runtime/engine_lock.hpp"

namespace ringcore {

bool Runtime::wait_for_attention(Nanoseconds limit) {
  std::unique_lock guard(attention_mutex_);
  attention_changed_.wait_for(guard, std::chrono::nanoseconds(limit), [this] { return attention_; });
  attention_ = false;
  return !stopped_;
}

Runtime::Attention Runtime::take_attention() {
  const EngineLock lock(*this);
  engine_.take_loss();
  return {engine_.take_warnings(), engine_.take_stack_request(), engine_.lost_rank(), engine_.take_for_witness()};
}

void Runtime::reply_stacks(const std::string& text) {
  const EngineLock lock(*this);
  if (!stopped_) engine_.reply_stacks(text);
}

Rank Runtime::rank(engine::ProcessSetId set) {
  const EngineLock lock(*this);
  return engine_.rank(set);
}

int Runtime::size(engine::ProcessSetId set) {
  const EngineLock lock(*this);
  return engine_.size(set);
}

engine::ProcessSetId Runtime::add_process_set(std::vector<Rank> members, std::optional<engine::ProcessSetId> agreed) {
  const EngineLock lock(*this);
  check_running();
  return engine_.add_process_set(std::move(members), agreed);
}

void Runtime::remove_process_set(engine::ProcessSetId id) {
  const EngineLock lock(*this);
  check_running();
  engine_.remove_process_set(id);
}

void Runtime::refuse(engine::ProcessSetId set, const std::string& name, const std::string& why) {
  const EngineLock lock(*this);
  if (leaving_) return;
  engine_.refuse(set, name, why);
  if (engine_.busy()) thread_waiter_.wake();
}

void Runtime::offer(std::span<const std::byte> offer) {
  const EngineLock lock(*this);
  if (leaving_) return;
  engine_.offer(offer);
  if (engine_.busy()) thread_waiter_.wake();
}

void Runtime::start_timeline(std::unique_ptr<engine::SpanSink> sink) {
  const EngineLock lock(*this);
  engine_.timeline().start(std::move(sink));
}

std::vector<engine::Span> Runtime::take_timeline() {
  const EngineLock lock(*this);
  return engine_.timeline().take();
}

std::vector<engine::Span> Runtime::stop_timeline() {
  const EngineLock lock(*this);
  engine_.timeline().flush();
  engine_.timeline().stop();
  return engine_.timeline().take();
}

std::string Runtime::timeline_failure() {
  const EngineLock lock(*this);
  return engine_.timeline().failure();
}

Runtime::Statistics Runtime::statistics() {
  const EngineLock lock(*this);
  Statistics found{.operations = engine_.completed(), .pending = engine_.pending(), .now = clock_.now(), .traffic = {}};
  for (engine::Pending& pending : found.pending) {
    // The short cut asks for no clock; its caller waits in `drive`.
    if (pending.since == 0) pending.since = drive_began_;
  }
  for (transport::Link* link : links_) {
    transport::Link::Traffic& sum = found.traffic[std::string(link->transport())];
    sum.sent += link->traffic().sent;
    sum.received += link->traffic().received;
  }
  return found;
}

Nanoseconds Runtime::waited_for_others() {
  const EngineLock lock(*this);
  return engine_.waited_for_others();
}

std::vector<std::string> Runtime::transports() {
  const EngineLock lock(*this);
  std::vector<std::string> names;
  for (const Rank rank : engine_.membership().ranks()) {
    const engine::Peer* peer = engine_.membership().peer(rank);
    names.emplace_back(peer == nullptr ? "self" : peer->link->transport());
  }
  return names;
}

bool Runtime::change_links(engine::Place peer, const std::function<void()>& change) {
  const EngineLock lock(*this);
  if (links_.empty() || engine_.membership().peer_at(peer) == nullptr) return false;
  disarm();
  change();
  engine_.links_changed();
  look_at_links();
  // Whoever sleeps does so on what there was before.
  (waiters_ > 0 ? driver_waiter_ : thread_waiter_).wake();
  return true;
}

bool Runtime::needs_lane(engine::Place peer, int lane) {
  const EngineLock lock(*this);
  return engine_.needs_lane(peer, lane);
}

std::pair<std::uint32_t, std::vector<engine::Place>> Runtime::members(std::optional<std::uint32_t> epoch) {
  const EngineLock lock(*this);
  const std::uint32_t wanted = epoch.value_or(engine_.membership().epoch());
  return {wanted, engine_.members_of(wanted)};
}

void Runtime::fail_on_change(bool fails) {
  const EngineLock lock(*this);
  engine_.fail_on_change(fails);
}

void Runtime::excuse(std::vector<Rank> ranks) {
  const EngineLock lock(*this);
  engine_.excuse(std::move(ranks));
}

void Runtime::meet(engine::Place place, const std::function<std::unique_ptr<transport::Link>()>& make_link) {
  change_engine([&] {
    engine_.meet(place, make_link());
    look_at_links();
  });
}

std::vector<int> Runtime::hosts_of(std::span<const engine::Place> places) {
  const EngineLock lock(*this);
  std::vector<int> hosts;
  for (const engine::Place place : places) hosts.push_back(engine_.membership().host_at(place));
  return hosts;
}

bool Runtime::is_turned_away(engine::Place place) {
  const EngineLock lock(*this);
  const engine::Peer* peer = engine_.membership().peer_at(place);
  return peer == nullptr || peer->turned_away;
}

void Runtime::accept_change(std::uint32_t epoch) {
  const EngineLock lock(*this);
  follow_links();
  engine_.accept_change(epoch);
}

void Runtime::fail(const std::shared_ptr<const Error>& error) {
  change_engine([&] { engine_.fail(error); });
}

void Runtime::hear_witness(std::span<const std::byte> message) {
  change_engine([&] { engine_.hear_witness(message); });
}

void Runtime::lose_witness() {
  change_engine([&] { engine_.lose_witness(); });
}

// By a thread that does not drive it: whoever does goes on at once with what follows from that.
void Runtime::change_engine(const std::function<void()>& change) {
  const EngineLock lock(*this);
  if (stopped_) return;
  disarm();
  change();
  collect_attention();
  (waiters_ > 0 ? driver_waiter_ : thread_waiter_).wake();
}

std::optional<Rank> Runtime::lost_rank() {
  const EngineLock lock(*this);
  return engine_.lost_rank();
}

std::shared_ptr<const Error> Runtime::failure() {
  const EngineLock lock(*this);
  return engine_.failure();
}

}  // namespace ringcore
