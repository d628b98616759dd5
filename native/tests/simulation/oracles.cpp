#include "oracles.hpp"

#include <algorithm>
#include <map>

namespace ringcore::simulation {
namespace {

bool may_fail(const Cluster& cluster) {
  return std::any_of(cluster.faults().begin(), cluster.faults().end(),
                     [](const Fault& fault) { return fault.injected && fault.may_fail(); });
}

// Whether a rank may be left alone in a call of the phase that waits.
bool someone_waits_alone(const Phase& phase) {
  return phase.blocking && std::any_of(phase.requests.begin(), phase.requests.end(),
                                       [](const Request& request) { return request.missing_member >= 0; });
}

std::string check_task(const Cluster& cluster, const Task& task, std::size_t request) {
  const std::vector<int> contributors = cluster.contributors(task.phase, request);
  for (std::size_t i = 0; i < task.got.size(); ++i) {
    std::string wrong = check_result(*task.request, i, task.member, task.members, contributors, task.got[i]);
    if (!wrong.empty()) return "tensor " + std::to_string(i) + ": " + wrong;
  }
  return "";
}

// One request on all ranks.
struct Outcomes {
  std::vector<const Task*> tasks;
  std::map<std::string, int> messages;
  const Task* first_right = nullptr;
};

// Joined ranks have nothing to give to anything but allreduces.
bool has_joined_too_early(const Cluster& cluster, std::size_t phase, std::size_t index) {
  const Request& request = cluster.workload().phases[phase].requests[index];
  const std::size_t members = cluster.workload().sets[request.set].size();
  return request.collective != Collective::kAllreduce && cluster.contributors(phase, index).size() < members;
}

// Whoever is not told what another one has refused gets another error, when its time is over.
std::string check_refusal(const std::map<std::string, int>& messages) {
  for (const auto& [message, ranks] : messages) {
    // At the end of the job, who has been told leaves; a late one hears of that first.
    if (message.find("integers take whole factors only") != std::string::npos) continue;
    // So does one that comes late to a process set that the others have removed.
    const bool is_late = message.find(" has left. ") != std::string::npos ||
                         message.find(" has left (after ") != std::string::npos ||
                         message.find(" has removed process set ") != std::string::npos;
    if (!is_late) return "no refusal: " + message;
  }
  return "";
}

std::string check_request(const Cluster& cluster, std::size_t phase, std::size_t index, Outcomes& outcomes) {
  const Request& request = cluster.workload().phases[phase].requests[index];
  const bool fits = request.fits() && !has_joined_too_early(cluster, phase, index);
  const bool explained = may_fail(cluster) || !fits || someone_waits_alone(cluster.workload().phases[phase]);
  for (const Task* task : outcomes.tasks) {
    if (task->overrun) return "member " + std::to_string(task->member) + " wrote where no result belongs";
    if (task->error != nullptr) {
      ++outcomes.messages[task->error->what()];
      if (!explained) return std::string("it failed: ") + task->error->what();
      continue;
    }
    if (!task->taken) {
      if (!may_fail(cluster)) return "it was never done";
      continue;
    }
    if (task->watch != nullptr && (!task->watch->done() || task->watch->error != nullptr)) {
      return "member " + std::to_string(task->member) + " never heard that the others submit it";
    }
    if (!fits) return "what does not fit, or is missing, was not noticed";
    if (std::string wrong = check_task(cluster, *task, index); !wrong.empty()) {
      return "wrong result on member " + std::to_string(task->member) + ": " + wrong;
    }
    const bool replicated =
        request.collective == Collective::kAllreduce || request.collective == Collective::kBroadcast;
    if (outcomes.first_right == nullptr) outcomes.first_right = task;
    if (replicated && outcomes.first_right->got != task->got) return "members have got different bits";
  }
  if (may_fail(cluster) || someone_waits_alone(cluster.workload().phases[phase])) return "";
  if (request.misfit == Misfit::kRefused) return check_refusal(outcomes.messages);
  if (outcomes.messages.size() > 1 && request.misfit != Misfit::kNone) {
    return "it failed differently:\n    " + outcomes.messages.begin()->first + "\n    " +
           std::next(outcomes.messages.begin())->first;
  }
  return "";
}

// A record that no correct peer sends must end the job, if it came before the job was over.
std::string check_noticed(Cluster& cluster) {
  if (cluster.faults().size() != 1) return "";
  const Fault& fault = cluster.faults().front();
  if (!fault.injected || (fault.kind != FaultKind::kStaleEpoch && fault.kind != FaultKind::kDuplicate)) return "";
  cluster.settle();
  const char* reason = fault.kind == FaultKind::kStaleEpoch ? "of epoch" : "where record";
  for (const RankState& state : cluster.ranks()) {
    if (state.left || state.engine->failure() == nullptr) continue;
    if (std::string(state.engine->failure()->what()).find(reason) != std::string::npos) return "";
  }
  // Who has said goodbye reads nothing more; servers go last.
  const auto has_left = [&](const RankState& state) { return state.left || state.rank >= cluster.workload().ranks; };
  const bool all_left = std::all_of(cluster.ranks().begin(), cluster.ranks().end(), has_left);
  return all_left ? "" : "a wrong record was accepted";
}

}  // namespace

std::string check(Cluster& cluster) {
  const auto& phases = cluster.workload().phases;
  for (std::size_t phase = 0; phase < phases.size(); ++phase) {
    for (std::size_t index = 0; index < phases[phase].requests.size(); ++index) {
      const Request& request = phases[phase].requests[index];
      Outcomes outcomes;
      for (const RankState& state : cluster.ranks()) {
        if (state.gone) continue;
        for (const Task& task : state.tasks) {
          if (task.request == &request && task.submitted) outcomes.tasks.push_back(&task);
        }
      }
      if (std::string wrong = check_request(cluster, phase, index, outcomes); !wrong.empty()) {
        return cluster.describe("phase " + std::to_string(phase) + ", '" + request.name + "' (" +
                                std::string(name_of(request.collective)) + " " + std::string(name_of(request.op)) +
                                " of " + std::string(name_of(request.dtype)) + ", set " + std::to_string(request.set) +
                                "): " + wrong);
      }
    }
  }
  for (const RankState& state : cluster.ranks()) {
    if (state.gone || may_fail(cluster)) continue;
    // Who has left may no longer hear from those who go on without it.
    if (state.engine->failure() != nullptr && !state.left)
      return cluster.describe("rank " + std::to_string(state.rank) + " failed");
    if (state.join_error != nullptr) return cluster.describe(std::string("join failed: ") + state.join_error->what());
    if (state.meet_error != nullptr) return cluster.describe(std::string("not met: ") + state.meet_error->what());
  }
  return check_noticed(cluster);
}

}  // namespace ringcore::simulation
