// Which of the tasks that were released runs when.
#include <algorithm>
#include <utility>

#include "engine/device_queue.hpp"
#include "engine/execution_task.hpp"
#include "engine/set_numbers.hpp"

namespace ringcore::engine {
namespace {

// So many tasks with a priority run beside each other: more would begin what the other ranks have not.
constexpr int kBeside = 2;

// What has a priority is put in order within its lane. What is to stay in the order of release, and is less urgent than
// what has no priority, comes before none of those that are put in order.
int lane_of(std::int32_t priority, bool in_order, std::uint64_t run) {
  constexpr int kUrgent = transport::kLaneCount - 1;
  constexpr int kOrdered = transport::kLaneCount - 2;
  if (priority > 0) return kUrgent;
  if (priority < 0) return in_order ? transport::kFirstDataLane : kOrdered;
  return transport::kFirstDataLane + static_cast<int>(run % (kUrgent - transport::kFirstDataLane));
}

}  // namespace

void Execution::schedule(std::unique_ptr<Task> task) {
  // These stay in the order of their release: what shares the lane's buffer, and what others carry out, who want to see
  // the same order on every rank. Messages from memory to memory meet in the order of the runs, too.
  const bool has_messages = std::any_of(links_.begin(), links_.end(), [](const transport::Link* link) {
    return link != nullptr && link->has_messages();
  });
  const bool in_order = task->descriptors.size() > 1 || slices(*task) || chooser_.has_backends() || has_messages;
  task->lane = lane_of(task->priority, in_order, next_run_);
  if (in_order) task->priority = 0;
  // Never 0; different for the runs of different process sets that may be under way at the same time.
  constexpr std::uint32_t kRuns = (1U << (32 - kProcessSetBits)) - 1;
  task->id = static_cast<std::uint32_t>(slot_of(id_)) << (32 - kProcessSetBits) |
             static_cast<std::uint32_t>(next_run_++ % kRuns + 1);
  std::deque<std::unique_ptr<Task>>& tasks = lanes_[task->lane].tasks;
  const auto less_urgent = std::upper_bound(tasks.begin(), tasks.end(), task,
                                            [](const auto& a, const auto& b) { return a->priority > b->priority; });
  tasks.insert(less_urgent, std::move(task));
}

bool Execution::progress() {
  bool moved = progress_device();
  // The urgent lane first.
  for (int lane = transport::kLaneCount - 1; lane >= transport::kFirstDataLane; --lane) {
    moved = progress_lane(lanes_[lane]) || make_way(lane) || moved;
  }
  return moved;
}

// In a lane where nothing moves, and where the ranks may be at different tasks: a transfer for one may stand in the way
// of another's.
bool Execution::make_way(int lane) {
  const std::deque<std::unique_ptr<Task>>& tasks = lanes_[lane].tasks;
  if (tasks.size() < 2 || (tasks.front()->priority == 0 && tasks.back()->priority == 0)) return false;
  bool moved = false;
  for (int m = 0; m < size(); ++m) {
    if (m != self_) moved = plan::set_aside(*links_[m], lane, m) || moved;
  }
  return moved;
}

bool Execution::progress_lane(Lane& lane) {
  bool moved = false;
  bool sending = false;  // one of those before
  int begun = 0;         // of those before
  for (auto it = lane.tasks.begin(); it != lane.tasks.end();) {
    Task& task = **it;
    const bool beside = task.priority != 0 && begun < kBeside && !sending;
    if (task.run == nullptr && (it == lane.tasks.begin() || beside)) {
      start(task);
      ++lane.begun;
      moved = true;
    }
    if (task.run == nullptr) {
      if (begun == lane.begun) return moved;
      ++it;
      continue;
    }
    task.run->hold(sending);
    if (advance(task, moved)) {
      finish(task);
      --lane.begun;
      it = lane.tasks.erase(it);
      continue;
    }
    sending = sending || task.run->sending();
    ++begun;
    ++it;
  }
  return moved;
}

// True when its run is done.
bool Execution::advance(Task& task, bool& moved) {
  do {
    if (task.copy) {
      moved = task.moved = true;
      if (!copy_piece(task)) return false;
    }
    if (task.run->progress()) moved = task.moved = true;
    if (!task.run->done()) return false;
    moved = task.moved = true;
  } while ((task.choice.trial != nullptr && agree_on_times(task)) || (task.sliced && next_slice(task)));
  return true;
}

bool Execution::idle() const {
  return deferred_.empty() && (device_ == nullptr || device_->idle()) &&
         std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.tasks.empty(); });
}

// After a run that was a trial: true while the ranks exchange what they have measured.
bool Execution::agree_on_times(Task& task) {
  if (std::exchange(task.agreeing, false)) {
    plan::Chooser::decide(*std::exchange(task.choice.trial, nullptr));
    return false;
  }
  const std::span<double> times = chooser_.measured(task.choice, clock_.now() - task.ready_at);
  if (times.empty()) return false;
  if (timeline_.enabled()) record_steps(task);
  task.agreeing = true;
  const plan::Query query{.collective = Collective::kAllreduce,
                          .bytes = times.size_bytes(),
                          .dtype = DType::kFloat64,
                          .op = ReduceOp::kMax};
  const plan::Plan& plan = chooser_.choose_plan(query);
  run_plan(task, plan,
           {.dtype = query.dtype,
            .op = query.op,
            .data_layout = plan::Layout::even(times.size(), plan.chunks),
            .data = reinterpret_cast<std::byte*>(times.data())});
  return true;
}

bool Execution::waits_for(int member) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [member](const Lane& lane) {
    return std::any_of(lane.tasks.begin(), lane.tasks.end(), [member](const std::unique_ptr<Task>& task) {
      return task->run != nullptr && task->run->waits_for(member);
    });
  });
}

Execution::LibraryWork Execution::library_work() const {
  LibraryWork work{.ended = library_ended_};
  for (const Lane& lane : lanes_) {
    for (const std::unique_ptr<Task>& task : lane.tasks) {
      if (task->run != nullptr && task->choice.backend != nullptr) work.bytes += task->run_bytes;
    }
  }
  return work;
}

std::optional<Execution::Still> Execution::find_still(Nanoseconds elapsed, Nanoseconds limit) {
  for (const Lane& lane : lanes_) {
    bool moved = false;  // this one, or one that goes before it
    for (const std::unique_ptr<Task>& each : lane.tasks) {
      Task& task = *each;
      if (task.run == nullptr) continue;
      moved = std::exchange(task.moved, false) || moved;
      task.still_for = moved ? 0 : task.still_for + elapsed;
      const std::size_t of_library = task.choice.backend == nullptr ? 0 : task.run_bytes;
      if (task.still_for <= limit + static_cast<Nanoseconds>(of_library) * kNanosecondsPerLibraryByte) continue;
      Still still{.operation = task.title(), .bytes = task.bytes, .members = {}, .waits_for = task.run->waiting_for()};
      for (int m = 0; m < size(); ++m) {
        if (m != self_ && task.run->waits_for(m)) still.members.push_back(m);
      }
      return still;
    }
  }
  return std::nullopt;
}

std::string Execution::describe_running() const {
  for (const Lane& lane : lanes_) {
    if (lane.begun == 0) continue;
    // The first may have come just now.
    const Task& task = **std::find_if(lane.tasks.begin(), lane.tasks.end(),
                                      [](const std::unique_ptr<Task>& each) { return each->run != nullptr; });
    return task.title() + " waits for " + task.run->waiting_for();
  }
  return device_ == nullptr ? "" : device_->describe();
}

}  // namespace ringcore::engine
