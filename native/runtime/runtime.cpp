#include "runtime/runtime.hpp"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "runtime/engine_lock.hpp"

namespace ringcore {
namespace {

// How long a leaving rank waits until its peers have read what it sent.
constexpr Nanoseconds kFarewellLimit = 2 * kSecond;
// And until what it keeps itself is in the kernel's hands: of a host that does not answer TCP knows as soon.
constexpr Nanoseconds kUnsentLimit = 30 * kSecond;
// While blocking calls come one after the other, the progress thread looks only this often whether they have ended.
constexpr Nanoseconds kQuietTick = 10 * kMillisecond;
// A waiting thread looks after timers this often, and after signals so often.
constexpr Nanoseconds kTimerInterval = kMillisecond;
constexpr Nanoseconds kInterruptInterval = 50 * kMillisecond;
// ... and after the processors that it may run on.
constexpr Nanoseconds kProcessorsInterval = 50 * kMillisecond;
// After announcements that nobody waits for the progress thread lets more of them come before it asks to be rung again:
// a bell for each would cost both sides more than the announcement.
constexpr Nanoseconds kGather = 100'000;
// A thread that submits one operation after the other drives the engine by that: it is left alone for longer.
constexpr std::uint64_t kBurst = 8;
constexpr Nanoseconds kGatherBurst = kMillisecond;
constexpr Nanoseconds kShortestNap = 50'000;
// A thread that drives for others looks up after so many turns: at the clock, and whether somebody waits for the engine.
constexpr int kTurns = 64;
// How often a caller that holds a lock of its own looks at its peers, all together, for a small operation: about 20 us.
constexpr int kLooks = 200;
// And after how many of them at the processors of the host's ranks: more than a small operation takes.
constexpr int kLooksBetween = 25;
// Logs of different length are looked at after nothing has moved for this long.
constexpr Nanoseconds kIdle = 100'000;

std::vector<transport::Link*> present_links(const engine::Engine& engine) {
  std::vector<transport::Link*> links;
  for (const engine::Peer* peer : engine.membership().known()) links.push_back(peer->link.get());
  return links;
}

// Libraries that carry messages may have locks of their own, which others hold while they wait for the caller's: they are
// not called under it.
int looks_at(const std::vector<transport::Link*>& links) {
  if (std::any_of(links.begin(), links.end(), [](const transport::Link* link) { return link->has_messages(); }))
    return 0;
  return std::max(1, kLooks / std::max(1, static_cast<int>(links.size())));
}

// The last runtime that has taken note of the thread.
thread_local std::uint64_t noted_by = 0;
std::atomic<std::uint64_t> runtimes = 0;

}  // namespace

Runtime::Runtime(RuntimeConfig config)
    : engine_(std::move(config.engine), config.settings, clock_),
      links_(present_links(engine_)),
      companions_(std::move(config.companions)),
      looks_(looks_at(links_)),
      serial_(++runtimes),
      crowd_(config.local_ranks, transport::processor_quota("/sys/fs/cgroup", "/proc/self/cgroup")),
      driver_waiter_(config.spin),
      thread_waiter_(0) {
  crowd_.meet(links_);
  if (engine_.size() > 1 || !engine_.membership().is_member()) thread_ = std::thread([this] { progress_loop(); });
}

Runtime::~Runtime() { leave(""); }

void Runtime::check_running() const {
  if (leaving_) throw Error(ErrorKind::kShutdown, "ringcore was shut down on this rank. Remedy: call init() again.");
}

bool Runtime::prepare_to_submit(EngineLock& lock, const Interrupted& interrupted) {
  check_running();
  if (engine_.membership().is_member() || engine_.failure() != nullptr) return true;
  become_member(lock, interrupted);
  return engine_.has_joined();
}

// Whether this is the only thread that has ever used the engine.
bool Runtime::note_thread() {
  if (std::exchange(noted_by, serial_) != serial_) add_user();
  const std::thread::id self = std::this_thread::get_id();
  if (only_thread_.load(std::memory_order_relaxed) == self) return !several_threads_;
  std::thread::id nobody{};
  if (!only_thread_.compare_exchange_strong(nobody, self) && nobody != self) several_threads_ = true;
  return !several_threads_;
}

void Runtime::submit(const std::shared_ptr<engine::Operation>& operation, const Interrupted& interrupted) {
  note_thread();
  EngineLock lock(*this);
  if (!prepare_to_submit(lock, interrupted)) return;
  ++submits_;
  // The progress thread is about to look, at the latest in kGatherBurst: what comes until then goes out together.
  const bool held = gathering_ && waiters_ == 0;
  engine_.submit(operation, held);
  if (operation->descriptor.captured) {  // as is known now
    return drive([&operation] { return operation->done(); }, kForever, interrupted, lock);
  }
  if (held) return;
  // What is more goes on beside the caller.
  int turns = 0;
  while (turns < kTurns && engine_.progress()) ++turns;
  const bool more = turns == kTurns;
  // Whoever drives has gone to sleep when nothing waited for room.
  if (more ||
      (armed_ && std::any_of(links_.begin(), links_.end(), [](transport::Link* link) { return link->blocked(); }))) {
    disarm();
    (waiters_ > 0 ? driver_waiter_ : thread_waiter_).wake();
  } else if (!armed_ && !gathering_ && engine_.busy()) {
    thread_waiter_.wake();
  }
}

// Under the lock: whoever has held the group besides has had it then.
bool Runtime::can_be_renewed(const std::shared_ptr<engine::Operation>& group, const engine::Call& call,
                             std::size_t parts) {
  const EngineLock lock(*this, std::try_to_lock);
  return lock && engine::can_be_renewed(group, call, parts);
}

Runtime::Tried Runtime::try_run(const std::shared_ptr<engine::Operation>& operation, Caller caller) {
  const engine::Descriptor& descriptor = operation->descriptor;
  if (looks_ == 0 || descriptor.on_device || descriptor.is_group() || operation->bytes() > engine::kMaxPayloadBytes) {
    return Tried::kNotSubmitted;
  }
  operation->awaited = true;
  operation->only_thread = note_thread() && caller == Caller::kAlone;
  const EngineLock lock(*this, std::try_to_lock);
  if (!lock || !engine_.membership().is_member()) return Tried::kNotSubmitted;
  check_running();
  engine_.submit(operation);
  if (armed_) disarm();
  ++drives_;
  for (int look = 0; look < looks_ && engine_.in_short_cut() && contenders_ == 0; ++look) {
    if (engine_.progress()) continue;
    if (look % kLooksBetween == kLooksBetween - 1 && crowd_.shares_processor()) break;
    transport::Waiter::look_again();
  }
  if (!operation->done()) return Tried::kSubmitted;
  if (engine_.busy()) thread_waiter_.wake();
  return Tried::kDone;
}

void Runtime::run(const std::shared_ptr<engine::Operation>& operation, const Interrupted& interrupted, Caller caller) {
  operation->awaited = true;
  operation->only_thread = note_thread() && caller == Caller::kAlone;
  EngineLock lock(*this);
  if (!prepare_to_submit(lock, interrupted)) return;
  engine_.submit(operation);
  const Waiting waiting(*this, *operation, caller);
  drive([&operation] { return operation->done(); }, kForever, interrupted, lock);
}

bool Runtime::wait(engine::Operation& operation, Nanoseconds limit, const Interrupted& interrupted, Caller caller) {
  if (operation.done()) return true;
  // Who gives up waiting may submit something else before this is done.
  const bool only_thread = note_thread() && caller == Caller::kAlone && limit == kForever;
  EngineLock lock(*this);
  if (operation.done()) return true;
  engine_.wanted(operation, only_thread);
  const Nanoseconds begin = engine_.timeline().enabled() ? clock_.now() : 0;
  std::optional<Waiting> waiting;
  if (limit == kForever) waiting.emplace(*this, operation, caller);
  drive([&operation] { return operation.done(); }, limit, interrupted, lock);
  if (begin != 0 && limit > 0) record_wait(operation, begin);
  return operation.done();
}

void Runtime::serve(const Interrupted& interrupted) {
  EngineLock lock(*this);
  check_running();
  if (!engine_.serves()) throw Error(ErrorKind::kInvalidArgument, "this rank is no server");
  drive([this] { return engine_.failure() != nullptr || engine_.has_served(); }, kForever, interrupted, lock);
  if (engine_.failure() != nullptr) throw Error(*engine_.failure());
}

// Of an operation that went on beside the program until here: what is waited now is not hidden.
void Runtime::record_wait(const engine::Operation& operation, Nanoseconds begin) {
  engine::Timeline& timeline = engine_.timeline();
  timeline.record({operation.join ? "join" : operation.descriptor.name, "wait", engine::kProgramLane, -1, begin,
                   clock_.now(), 0, operation.submitted_at, true});
  timeline.flush();
}

template <class Ended>
void Runtime::drive(Ended ended, Nanoseconds limit, const Interrupted& interrupted, EngineLock& lock) {
  ++waiters_;
  ++drives_;
  if (armed_) disarm();
  transport::Waiter& waiter = driver_waiter_;
  waiter.begin();
  const Nanoseconds begin = clock_.now();
  drive_began_ = begin;
  Nanoseconds timers_checked = begin;
  Nanoseconds asked = begin;
  int turns = 0;
  while (!ended()) {
    const bool moved = engine_.progress();
    if (moved) waiter.active(clock_);
    lock.tell();
    if (ended()) break;
    const Nanoseconds now = clock_.now();
    if (now - timers_checked >= (waiter.idle_for(now) >= kIdle ? kTimerInterval / 8 : kTimerInterval)) {
      timers_checked = now;
      look_after_companions();
      tell_who_waits(now);
      engine_.check_timers(waiter.idle_for(now) >= kIdle);
      collect_attention();
      if (ended()) break;
    }
    if (now - begin >= limit || stopped_) break;
    if (moved && (contenders_ == 0 || ++turns % kTurns != 0)) continue;
    if (now - asked >= kInterruptInterval && interrupted) {
      asked = now;
      engine_.all_wait({});  // who is asked may do anything
      lock.unlock();
      const bool stop = interrupted();
      lock.lock();
      if (stop) break;
    }
    if (contenders_ > 0) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    if (moved || waiter.stay_awake(clock_, now, crowd_.shares_processor())) continue;
    if (now - processors_counted_ >= kProcessorsInterval) {  // this program may be bound anew
      processors_counted_ = now;
      crowd_.count_processors();
    }
    if (arm()) continue;
    const Nanoseconds longest = awaiting_devices_ > 0 ? kShortestNap : kTimerInterval * 4;  // a GPU rings no bell
    const Nanoseconds nap = longest_nap(true, std::min({longest, limit - (now - begin), engine_.timer_interval()}));
    if (nap == 0) {
      disarm();
      std::this_thread::yield();
      continue;
    }
    std::vector<pollfd> set = wait_set(waiter);
    lock.unlock();
    waiter.sleep(std::move(set), nap);
    const Nanoseconds woken = clock_.now();
    lock.lock();
    disarm();
    if (const auto rung = crowd_.rung_since(now)) waiter.note_wake(woken - std::min(woken, *rung));
  }
  --waiters_;
  collect_attention();
  // Another waiter's operation may have ended as well, or the progress thread is needed again.
  if (waiters_ > 0) driver_waiter_.wake();
  if (engine_.busy()) thread_waiter_.wake();
}

bool Runtime::arm() {
  armed_ = true;
  bool arrived = false;
  for (transport::Link* link : links_) arrived = link->arm() || arrived;
  if (arrived) disarm();
  return arrived;
}

void Runtime::disarm() {
  if (!armed_) return;
  armed_ = false;
  for (transport::Link* link : links_) link->disarm();
}

// Some links wake nobody.
Nanoseconds Runtime::longest_nap(bool busy, Nanoseconds limit) {
  for (transport::Link* link : links_) limit = std::min(limit, link->longest_nap(busy));
  for (const auto& companion : companions_) limit = std::min(limit, companion->longest_nap());
  return limit;
}

std::vector<pollfd> Runtime::wait_set(const transport::Waiter& waiter) const {
  std::vector<pollfd> set = waiter.wait_set(links_);
  if (const transport::Readiness* const readiness = engine_.readiness()) readiness->add_wait_fds(set);
  for (const auto& companion : companions_) companion->add_wait_fds(set);
  return set;
}

void Runtime::look_after_companions() {
  for (const auto& companion : companions_) companion->look_after();
}

void Runtime::progress_loop() {
  add_service_thread(::gettid());
  std::uint64_t seen_drives = 0;
  std::uint64_t drives_before = 0;  // the last sleep
  std::uint64_t seen_submits = 0;
  Nanoseconds timers_checked = 0;
  while (!stopped_) {
    // A mutex goes to whoever asks first, and that would be this thread again.
    for (int turn = 0; turn < kTurns && contenders_ > 0; ++turn) std::this_thread::yield();
    std::vector<pollfd> set = thread_waiter_.wait_set({});
    Nanoseconds limit = kQuietTick;
    {
      EngineLock lock(*this);
      gathering_ = false;
      crowd_.count_processors();  // the others say theirs when they have come this far, and may be bound anew
      // Calls that never have to wait look at no timer.
      if (const Nanoseconds now = clock_.now(); now - timers_checked >= engine_.timer_interval()) {
        timers_checked = now;
        engine_.check_timers(false);
        collect_attention();
      }
      // On behalf of those who are told when their operations end, until another thread waits and drives anyway.
      if (waiters_ == 0 && engine_.has_callbacks()) {
        drive([this] { return !engine_.has_callbacks() || waiters_ > 1; }, kForever, {}, lock);
      }
      if (waiters_ == 0 && drives_ == seen_drives) {
        disarm();
        look_after_companions();
        int turns = 0;
        while (turns < kTurns && engine_.progress()) {
          ++turns;
          lock.tell();
        }
        const bool more = turns == kTurns;
        if (const Nanoseconds now = clock_.now(); !more || now - timers_checked >= kTimerInterval) {
          timers_checked = now;
          engine_.check_timers(!more);
          collect_attention();
        }
        if (more) continue;
        const bool burst = submits_ - seen_submits >= kBurst;
        if ((turns > 0 || burst) && engine_.busy() && !engine_.running()) {
          gathering_ = true;
          limit = burst ? kGatherBurst : kGather;
        } else {
          if (arm()) continue;
          set = wait_set(thread_waiter_);
          limit = engine_.busy() ? std::min(engine_.timer_interval(), kQuietTick) : engine_.timer_interval();
          // Who waits again and again closes the buckets, and is not to be disturbed.
          if (engine_.has_open_buckets() && drives_ - drives_before < kBurst) limit = std::min(limit, kTimerInterval);
          // Nobody waits: even where a link would rather be driven on, others may need the core.
          limit = std::max(longest_nap(engine_.busy(), limit), kShortestNap);
        }
      } else if (waiters_ == 0 && engine_.busy()) {
        seen_drives = drives_;
        continue;
      }
      seen_drives = drives_before = drives_;
      seen_submits = submits_;
    }
    thread_waiter_.sleep(std::move(set), limit);
  }
}

void Runtime::wind_down(EngineLock& lock, const Interrupted& interrupted) {
  Nanoseconds asked = clock_.now();
  while (!engine_.wind_down()) {
    disarm();
    if (engine_.progress()) continue;
    engine_.check_timers(true);
    auto set = wait_set(driver_waiter_);
    lock.unlock();
    driver_waiter_.sleep(std::move(set), kTimerInterval);
    const bool ask = interrupted && clock_.now() - asked >= kInterruptInterval;
    if (ask) asked = clock_.now();
    const bool stop = ask && interrupted();
    lock.lock();
    if (stop) return;
  }
}

void Runtime::leave(const std::string& reason, const Interrupted& interrupted) {
  const std::lock_guard once(leaving_mutex_);
  leaving_ = true;
  {
    EngineLock lock(*this);
    if (stopped_) return;
    if (reason.empty()) wind_down(lock, interrupted);
    disarm();
    engine_.leave(reason);
    const Nanoseconds begin = clock_.now();
    const auto limit = [this] { return engine_.holds_unsent() ? kUnsentLimit : kFarewellLimit; };
    while (!engine_.farewell_seen() && clock_.now() - begin < limit()) {
      if (engine_.progress()) continue;
      engine_.check_timers(false);
      if (arm()) continue;
      auto set = wait_set(driver_waiter_);
      lock.unlock();
      driver_waiter_.sleep(std::move(set), kTimerInterval);
      lock.lock();
      disarm();
    }
    engine_.fail(std::make_shared<const Error>(
        ErrorKind::kShutdown, "ringcore was shut down on rank " + std::to_string(engine_.rank()) +
                                  " while the operation waited. Remedy: wait for it before shutdown()."));
    stopped_ = true;
  }
  thread_waiter_.wake();
  driver_waiter_.wake();
  if (thread_.joinable()) thread_.join();
  Memory::trim();
  {
    const EngineLock lock(*this);
    // Even if somebody keeps this object: who waits for data of this rank is to see that no more will come.
    links_.clear();
    crowd_.meet(links_);
    engine_.disconnect();
  }
  const std::lock_guard guard(attention_mutex_);
  attention_ = true;
  attention_changed_.notify_all();
}

void Runtime::collect_attention() {
  if (!engine_.wants_attention()) return;
  const std::lock_guard guard(attention_mutex_);
  attention_ = true;
  attention_changed_.notify_all();
}

void Runtime::look_at_links() {
  links_ = present_links(engine_);
  looks_ = looks_at(links_);
  crowd_.meet(links_);
}

// Former members may have been lost: nobody looks at their links any more.
void Runtime::follow_links() {
  if (!engine_.take_links_changed()) return;
  disarm();
  look_at_links();
}

std::vector<engine::Place> Runtime::arrivals() {
  const EngineLock lock(*this);
  // Small operations, one after the other, hear only those who take part in them.
  for (int turn = 0; turn < kTurns && engine_.progress(); ++turn) {
  }
  return engine_.arrivals();
}

void Runtime::let_in(engine::Place place, const Interrupted& interrupted) {
  EngineLock lock(*this);
  check_running();
  engine_.let_in(place);
  drive([this] { return !engine_.is_letting_in(); }, kForever, interrupted, lock);
  if (!engine_.frozen()) engine_.let_in({});  // it was interrupted
  throw_failure();
}

void Runtime::become_member(const Interrupted& interrupted) {
  EngineLock lock(*this);
  check_running();
  become_member(lock, interrupted);
}

void Runtime::become_member(EngineLock& lock, const Interrupted& interrupted) {
  engine_.become_member();
  drive([this] { return engine_.has_joined() || engine_.failure() != nullptr; }, kForever, interrupted, lock);
  throw_failure();
}

void Runtime::await_devices(const Interrupted& interrupted) {
  EngineLock lock(*this);
  check_running();
  ++awaiting_devices_;
  drive([this] { return engine_.settle_devices() || engine_.failure() != nullptr; }, kForever, interrupted, lock);
  --awaiting_devices_;
  throw_failure();
  if (engine_.lost_results() && engine_.change() != nullptr) {
    throw Error(ErrorKind::kMembershipChanged,
                std::string("GPUs had not ended what this rank has launched: ") + engine_.change()->what());
  }
}

void Runtime::throw_failure() {
  if (const auto failure = engine_.failure()) throw *failure;
}

}  // namespace ringcore
