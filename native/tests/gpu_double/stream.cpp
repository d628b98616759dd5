#include "double.hpp"

#include <cstdlib>
#include <utility>

namespace gpu_double {

Stream::Stream() : thread_([this] { loop(); }) {}

// What was given to it still runs, as in CUDA.
Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Stream::push(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !running_; });
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !running_;
}

void Stream::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

Stream& stream_of(void* handle) {
  static auto& default_stream = *new Stream;
  const auto number = reinterpret_cast<std::uintptr_t>(handle);  // 1 and 2 are CUDA's names for default streams
  return number <= 2 ? default_stream : *static_cast<Stream*>(handle);
}

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtol(text, nullptr, 10);
}

}  // namespace gpu_double
