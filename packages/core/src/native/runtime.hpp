// The runtime as Python holds it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include "engine/request.hpp"
#include "runtime/job.hpp"

namespace ringcore::python {

// Whether nobody reads or writes the operation's memory any more.
bool is_let_go(const engine::Operation& operation);

// For waits: whether Python has a signal to handle, or an exception of one that was handled.
bool python_interrupted();

// Of seconds as Python says them; infinity is for ever.
Nanoseconds limit_of(double timeout_s);

// This rank's part of a job, and the memory of what nobody in Python waits for any more.
class PythonRuntime {
 public:
  explicit PythonRuntime(JobConfig config) : job_(std::move(config)) {}
  ~PythonRuntime();
  PythonRuntime(const PythonRuntime&) = delete;
  PythonRuntime& operator=(const PythonRuntime&) = delete;

  Job& job() { return job_; }
  Runtime& get() { return job_.runtime(); }

  // What the calling thread is among those that Python knows, but for those that serve this runtime. Under Python's lock,
  // before each wait.
  Runtime::Caller count_threads();
  // See python_interrupted; threads may have ended meanwhile.
  Runtime::Interrupted asks_python();
  // A thread of Python that serves this runtime, and submits nothing.
  void add_service_thread(pid_t thread);
  void remove_service_thread(pid_t thread);
  // Its result may be of other ranks than those that Python counts: from here on it counts these.
  void take_note(const engine::Operation& operation) const;
  std::uint32_t epoch = 0;  // of the ranks that Python counts

  // Keeps the memory of an operation that nobody waits for any more until the engine is done with it.
  void abandon(std::shared_ptr<engine::Operation> operation, nanobind::object memory);
  void free_abandoned();

 private:
  using Abandoned = std::pair<std::shared_ptr<engine::Operation>, nanobind::object>;

  int service_threads_ = 0;
  std::vector<Abandoned> abandoned_;  // outlives the engine
  Job job_;
};

void register_first_links(nanobind::module_& module);
void register_job(nanobind::class_<PythonRuntime>& runtime);
void register_submission(nanobind::class_<PythonRuntime>& runtime);
void register_attention(nanobind::class_<PythonRuntime>& runtime);
void register_offers(nanobind::class_<PythonRuntime>& runtime);

}  // namespace ringcore::python
