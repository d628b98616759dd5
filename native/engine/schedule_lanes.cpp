// Which of the tasks that were released runs when.
#include <algorithm>
#include <utility>

#include "engine/schedule.hpp"
#include "engine/set_numbers.hpp"

namespace ringcore::engine {
namespace {

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

void Schedule::queue(std::unique_ptr<Task> task) {
  const bool in_order = task->carrier->queue(*task);
  task->lane = launch_lane(*task->carrier).value_or(lane_of(task->priority, in_order, next_run_));
  if (in_order) task->priority = 0;
  // Never 0; different for the runs of different process sets that may be under way at the same time.
  constexpr std::uint32_t kRuns = (1U << (32 - kProcessSetBits)) - 1;
  task->id = static_cast<std::uint32_t>(slot_of(id_)) << (32 - kProcessSetBits) |
             static_cast<std::uint32_t>(next_run_++ % kRuns + 1);
  std::deque<std::unique_ptr<Task>>& tasks = lanes_[task->lane].tasks;
  const auto less_urgent = std::upper_bound(tasks.begin(), tasks.end(), task,
                                            [](const auto& a, const auto& b) { return a->priority > b->priority; });
  tasks.insert(less_urgent, std::move(task));
  ++tasks_;
}

// Behind those of the links, one for each post whose tasks end at their launch.
std::optional<int> Schedule::launch_lane(const Carrier& carrier) const {
  for (std::size_t i = 0; i < posts_.size(); ++i) {
    if (posts_[i].carrier.get() != &carrier) continue;
    return posts_[i].completes_at_launch ? std::optional(transport::kLaneCount + static_cast<int>(i)) : std::nullopt;
  }
  __builtin_unreachable();
}

bool Schedule::progress() {
  bool moved = !deferred_.empty() && release_deferred();
  for (const Post& post : posts_) {
    if (post.ready && post.completes_at_launch) post.carrier->progress();
  }
  if (tasks_ == 0) return moved;
  // What is launched first, then the urgent lane.
  for (std::size_t lane = lanes_.size(); lane-- > transport::kFirstDataLane;) {
    moved = progress_lane(lanes_[lane]) || make_way(static_cast<int>(lane)) || moved;
  }
  return moved;
}

// In a lane where nothing moves, and where the ranks may be at different tasks: a transfer for one may stand in the way
// of another's.
bool Schedule::make_way(int lane) {
  const std::deque<std::unique_ptr<Task>>& tasks = lanes_[static_cast<std::size_t>(lane)].tasks;
  if (tasks.size() < 2 || (tasks.front()->priority == 0 && tasks.back()->priority == 0)) return false;
  return tasks.front()->carrier->make_way(lane);
}

bool Schedule::make_way() {
  bool moved = false;
  for (const Post& post : posts_) {
    for (int lane = transport::kFirstDataLane; lane < transport::kLaneCount; ++lane) {
      moved = post.carrier->make_way(lane) || moved;
    }
  }
  return moved;
}

bool Schedule::progress_lane(Lane& lane) {
  bool moved = false;
  bool sending = false;  // one of those before
  int begun = 0;         // of those before
  std::size_t under_way = 0;  // bytes of these
  for (auto it = lane.tasks.begin(); it != lane.tasks.end();) {
    Task& task = **it;
    const bool beside = task.priority != 0 && under_way < settings_.credit_bytes && !sending;
    if (task.run == nullptr && (it == lane.tasks.begin() || beside) && task.carrier->may_start(task)) {
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
    if (task.run->progress()) moved = task.moved = true;
    if (task.run->done()) {
      finish(task);
      moved = true;
      --lane.begun;
      it = lane.tasks.erase(it);
      --tasks_;
      continue;
    }
    sending = sending || task.run->sending();
    ++begun;
    under_way += task.bytes;
    ++it;
  }
  return moved;
}

void Schedule::start(Task& task) {
  task.started_at = clock_.now();
  for (const auto& operation : task.operations) operation->started_at = task.started_at;
  task.run = task.carrier->start(task);
}

void Schedule::finish(Task& task) {
  if (task.library_bytes > 0) ++library_ended_;
  if (timeline_.enabled() && task.carrier->completes_at_launch()) record_launch(task);
  if (std::string finding = task.carrier->take_finding(); !finding.empty()) {
    const Nanoseconds now = clock_.now();
    timeline_.record({"network", finding, task.lane, -1, now, now, 0});
    warnings_.push_back(std::move(finding));
  }
  for (auto& operation : task.operations) complete(std::move(operation));
}

// What was launched goes on by itself: of its end the host learns nothing.
void Schedule::record_launch(const Task& task) const {
  const Nanoseconds now = clock_.now();
  for (const auto& operation : task.operations) {
    const auto span = [&](const char* activity, Nanoseconds begin, Nanoseconds end) {
      timeline_.record({operation->descriptor.name, activity, task.lane, -1, begin, end, operation->bytes(),
                        operation->submitted_at, operation->blocks_program()});
    };
    span("negotiate", operation->submitted_at, operation->released_at);
    span("queue", operation->released_at, task.started_at);
    span("launch", task.started_at, now);
  }
  timeline_.flush();
}

bool Schedule::waits_for(int member, std::optional<int> lane) const {
  const auto waits = [member](const Lane& each) {
    return std::ranges::any_of(each.tasks, [member](const std::unique_ptr<Task>& task) {
      return task->run != nullptr && task->run->waits_for(member);
    });
  };
  return lane ? waits(lanes_.at(static_cast<std::size_t>(*lane))) : std::ranges::any_of(lanes_, waits);
}

Schedule::LibraryWork Schedule::library_work() const {
  LibraryWork work{.ended = library_ended_};
  for (const Lane& lane : lanes_) {
    for (const std::unique_ptr<Task>& task : lane.tasks) {
      if (task->run != nullptr) work.bytes += task->library_bytes;
    }
  }
  return work;
}

std::optional<Schedule::Still> Schedule::find_still(Nanoseconds elapsed, Nanoseconds limit) {
  std::optional<Still> found;
  for (const Lane& lane : lanes_) {
    bool moved = false;  // this one, or one that goes before it
    for (const std::unique_ptr<Task>& each : lane.tasks) {
      Task& task = *each;
      // What is launched is watched by its carrier.
      if (task.run == nullptr || task.carrier->completes_at_launch()) continue;
      moved = std::exchange(task.moved, false) || moved;
      task.still_for = moved ? 0 : task.still_for + elapsed;
      const Nanoseconds most = limit + static_cast<Nanoseconds>(task.library_bytes) * kNanosecondsPerLibraryByte;
      const bool too_long = task.still_for > most;
      if (task.still_for <= most / 2 || (found && !too_long)) continue;
      found = {.too_long = too_long,
               .operation = task.title(),
               .bytes = task.bytes,
               .members = {},
               .waits_for = task.run->waiting_for()};
      for (int m = 0; m < nodes_; ++m) {
        if (m != self_ && task.run->waits_for(m)) found->members.push_back(m);
      }
      if (too_long) return found;
    }
  }
  return found;
}

std::string Schedule::describe_running() const {
  for (const Lane& lane : lanes_) {
    if (lane.begun == 0) continue;
    // The first may have come just now.
    const Task& task = **std::find_if(lane.tasks.begin(), lane.tasks.end(),
                                      [](const std::unique_ptr<Task>& each) { return each->run != nullptr; });
    return task.title() + " waits for " + task.run->waiting_for();
  }
  return "";
}

}  // namespace ringcore::engine
