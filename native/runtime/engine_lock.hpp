// What the parts of the runtime share. Included by the files of this folder that implement Runtime, and by nothing else.
#pragma once

#include <mutex>
#include <utility>

#include "runtime/runtime.hpp"

namespace ringcore {

class Runtime::EngineLock {
 public:
  explicit EngineLock(Runtime& runtime) : runtime_(runtime) { lock(); }
  EngineLock(Runtime& runtime, std::try_to_lock_t) : runtime_(runtime), owns_(runtime.mutex_.try_lock()) {}
  ~EngineLock() {
    if (owns_) unlock();
  }
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

  explicit operator bool() const { return owns_; }

  void lock() {
    ++runtime_.contenders_;
    runtime_.mutex_.lock();
    --runtime_.contenders_;
    owns_ = true;
  }

  void unlock() {
    runtime_.follow_links();
    owns_ = false;
    if (!runtime_.engine_.has_completed()) return runtime_.mutex_.unlock();
    const auto completed = runtime_.engine_.take_completed();
    runtime_.engine_.all_wait({});  // who is told goes on
    ++runtime_.tellers_;  // who may submit something
    runtime_.mutex_.unlock();
    for (const auto& operation : completed) std::exchange(operation->on_done, nullptr)(operation);
    --runtime_.tellers_;
  }

  // For loops that hold it for long.
  void tell() {
    runtime_.follow_links();
    if (!runtime_.engine_.has_completed()) return;
    unlock();
    lock();
  }

 private:
  Runtime& runtime_;
  bool owns_ = false;
};

class Runtime::Waiting {
 public:
  Waiting(Runtime& runtime, const engine::Operation& operation, Caller caller);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Runtime& runtime_;
  const engine::Operation& operation_;
};

}  // namespace ringcore
