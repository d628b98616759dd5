// Which threads use the engine, and whether any of them is left that might submit something.
#include <algorithm>
#include <utility>

#include <unistd.h>

#include "runtime/engine_lock.hpp"
#include "runtime/sleep.hpp"

namespace ringcore {
namespace {

// When nothing has begun or ended for so long it is looked whether all threads sleep, and again after so long.
constexpr Nanoseconds kQuiet = 500 * kMillisecond;
constexpr Nanoseconds kLookInterval = 250 * kMillisecond;

// Ends with the thread.
const thread_local std::shared_ptr<const void> this_thread_lives = std::make_shared<int>();

}  // namespace

Runtime::Waiting::Waiting(Runtime& runtime, const engine::Operation& operation, Caller caller)
    : runtime_(runtime), operation_(operation) {
  runtime_.waits_.push_back({&operation, this_thread_lives.get(), ::gettid(), caller});
}

Runtime::Waiting::~Waiting() {
  std::erase_if(runtime_.waits_, [](const Wait& wait) { return wait.thread == this_thread_lives.get(); });
  operation_.done() ? runtime_.engine_.all_wait({}) : runtime_.engine_.gave_up();
}

void Runtime::add_user() {
  const std::lock_guard guard(users_mutex_);
  std::erase_if(users_, [](const User& user) { return user.expired(); });
  const bool known =
      std::any_of(users_.begin(), users_.end(), [](const User& user) { return user.lock() == this_thread_lives; });
  if (!known) users_.emplace_back(this_thread_lives);
}

// Whether no thread is left that might submit anything before one of those that wait goes on.
bool Runtime::all_threads_wait() {
  if (waits_.empty() || tellers_ > 0) return false;
  const auto counted =
      std::count_if(waits_.begin(), waits_.end(), [](const Wait& wait) { return wait.caller != Caller::kUnknown; });
  if (counted < threads_) return false;
  const std::lock_guard guard(users_mutex_);
  return std::all_of(users_.begin(), users_.end(), [this](const User& user) {
    const auto lives = user.lock();
    const auto is_it = [&lives](const Wait& wait) { return wait.thread == lives.get(); };
    return lives == nullptr || std::any_of(waits_.begin(), waits_.end(), is_it);
  });
}

void Runtime::add_service_thread(pid_t thread) {
  const EngineLock lock(*this);
  service_threads_.push_back(thread);
}

void Runtime::remove_service_thread(pid_t thread) {
  const EngineLock lock(*this);
  std::erase(service_threads_, thread);
}

bool Runtime::looks_who_sleeps(Nanoseconds now) {
  const std::uint64_t events = submits_ + drives_ + engine_.completed();
  if (std::exchange(events_, events) != events) look_at_ = now + kQuiet;
  if (now < look_at_) return false;
  look_at_ = now + kLookInterval;
  return true;
}

// Whether nothing but the end of an operation wakes any thread that might submit something.
bool Runtime::all_threads_sleep() const {
  if (tellers_ > 0 || contenders_ > 0) return false;
  std::vector<pid_t> others = service_threads_;
  others.push_back(::gettid());
  for (const Wait& wait : waits_) others.push_back(wait.number);
  return all_sleep_but(others);
}

void Runtime::tell_who_waits(Nanoseconds now) {
  std::vector<const engine::Operation*> operations;
  if (all_threads_wait()) {
    for (const Wait& wait : waits_) operations.push_back(wait.operation);
  } else if (looks_who_sleeps(now)) {
    const bool sleep = all_threads_sleep();
    if (sleep) operations = engine_.with_callbacks();
    for (const Wait& wait : waits_) {
      if (sleep) operations.push_back(wait.operation);
    }
    if (std::exchange(slept_, sleep) && !sleep) engine_.gave_up();
  }
  engine_.all_wait(operations);
}

}  // namespace ringcore
