// What the members of a process set tell each other before their first operation on GPUs, and what follows from it: by
// NCCL, in the memory of a GPU that they share, or by way of the host. All take the same decisions from the same
// messages.
#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "carriers/gpu/launcher.hpp"
#include "carriers/gpu/shared.hpp"
#include "device/libraries.hpp"

namespace ringcore::carriers {
namespace {

using Notice = SharedGpu::Notice;

// As much as fits into a launch or two; more would change nothing but the memory that it takes.
constexpr std::size_t kMinArenaBytes = std::size_t{4} << 20;
constexpr std::size_t kMaxArenaBytes = std::size_t{64} << 20;

// No two GPUs have one number, wherever they are. Ranks that cannot share the memory of a host, as those of two containers,
// may well share a GPU, and NCCL refuses that.
bool same_gpu(const Launcher::Facts& a, const Launcher::Facts& b) {
  return std::memcmp(a.uuid, b.uuid, sizeof(a.uuid)) == 0;
}

// The members on each GPU.
std::vector<std::vector<int>> group_by_gpu(std::span<const Launcher::Facts> facts) {
  std::vector<std::vector<int>> gpus;
  for (int m = 0; m < static_cast<int>(facts.size()); ++m) {
    const auto known = std::find_if(gpus.begin(), gpus.end(), [&](const std::vector<int>& group) {
      return same_gpu(facts[group.front()], facts[m]);
    });
    if (known == gpus.end()) {
      gpus.push_back({m});
    } else {
      known->push_back(m);
    }
  }
  return gpus;
}

// Whether they use parts (MIG) of one GPU that NCCL cannot tell apart: it compared places on the bus once.
bool alike_for_nccl(const Launcher::Facts& a, const Launcher::Facts& b) {
  return a.host == b.host && a.nccl_version < kNcclSharesGpus && !same_gpu(a, b) &&
         std::memcmp(a.address, b.address, sizeof(a.address)) == 0;
}

std::string member(std::size_t index) { return "member " + std::to_string(index); }

// Of the first member that has one.
std::string problem_among(std::span<const Notice> notices) {
  for (std::size_t m = 0; m < notices.size(); ++m) {
    if (notices[m].problem[0] != '\0') return member(m) + ": " + notices[m].problem;
  }
  return "";
}

template <class Message>
std::vector<Message> messages_of(std::span<const std::byte> bytes) {
  std::vector<Message> messages(bytes.size() / sizeof(Message));
  std::memcpy(messages.data(), bytes.data(), bytes.size());
  return messages;
}

}  // namespace

std::span<const std::byte> Launcher::message() {
  if (round_ == Round::kFacts) return std::as_bytes(std::span(&facts_, 1));
  const Notice* notice = shared_->notice();
  return notice == nullptr ? std::span<const std::byte>() : std::as_bytes(std::span(notice, 1));
}

void Launcher::hear(std::span<const std::byte> messages) {
  if (round_ == Round::kFacts) return agree(messages_of<Facts>(messages));
  const std::vector<Notice> notices = messages_of<Notice>(messages);
  why_not_shared_ = problem_among(notices);
  if (!why_not_shared_.empty()) {
    shared_.reset();
    round_ = Round::kAgreed;
  } else if (round_ == Round::kOffer) {
    shared_->open(notices);
    round_ = Round::kOpened;
  } else {
    round_ = Round::kAgreed;
  }
}

// Why NCCL cannot connect the members' GPUs; empty where it can, if no two share one.
std::string Launcher::problem_of_nccl(std::span<const Facts> facts) const {
  for (std::size_t m = 0; m < facts.size(); ++m) {
    if (facts[m].nccl_version == 0) {
      return member(m) + " cannot use NCCL" + (problem_.empty() ? "" : ": " + problem_);
    }
  }
  for (std::size_t m = 1; m < facts.size(); ++m) {
    if (facts[m].nccl_version != facts.front().nccl_version) {
      return "member 0 has NCCL " + device::nccl_version_text(facts.front().nccl_version) + " and " + member(m) +
             " NCCL " + device::nccl_version_text(facts[m].nccl_version) + ", which do not understand each other";
    }
    for (std::size_t other = 0; other < m; ++other) {
      if (alike_for_nccl(facts[other], facts[m])) {
        return member(m) + " and " + member(other) + " use parts of one GPU, which NCCL before 2.30 cannot tell apart";
      }
    }
  }
  return "";
}

void Launcher::agree(std::span<const Facts> facts) {
  id_ = facts.front().id;
  const auto bare = std::find_if(facts.begin(), facts.end(), [](const Facts& each) { return !each.has_kernels; });
  kernels_ = bare == facts.end();
  if (!kernels_) {
    const auto index = static_cast<int>(bare - facts.begin());
    kernels_warning_ = member(index) + " has no kernels" +
                       (index == self_ ? " (" + device_->kernels_problem() + ")" : "") +
                       "; averages and what is scaled are copied to the host and reduced there. Remedy: install the "
                       "NVRTC of the CUDA version that the GPUs' driver has (`ringcore doctor` shows what is found).";
  }
  const std::string why_not_between_gpus = problem_of_nccl(facts);
  why_not_nccl_ = why_not_between_gpus;
  const std::vector<std::vector<int>> gpus = group_by_gpu(facts);
  // One member needs no such memory, and NCCL does not say what it makes of windows where several share a GPU.
  const bool registers = size_ > 1 && gpus.size() == facts.size();
  registering_ = registers ? facts.front().registers : device::Registering::kNone;
  for (const Facts& each : facts) registering_ = std::min(registering_, each.registers);
  bool shared = false;
  for (const std::vector<int>& group : gpus) {
    const bool by_nccl = std::all_of(group.begin(), group.end(), [&](int m) { return facts[m].shares_gpus != 0; });
    if (group.size() == 1 || by_nccl) continue;
    shared = true;
    if (why_not_nccl_.empty()) why_not_nccl_ = member(group[1]) + " and " + member(group[0]) + " share a GPU";
  }
  by_nccl_ = why_not_nccl_.empty();
  round_ = Round::kAgreed;
  if (!shared) return;
  const bool fits = std::all_of(gpus.begin(), gpus.end(),
                                [](const std::vector<int>& group) { return group.size() <= device::kMaxSources; });
  if (!kernels_) {
    why_not_shared_ = "the kernels for that could not be compiled by NVRTC on each rank";
  } else if (gpus.size() > 1 && !why_not_between_gpus.empty()) {
    why_not_shared_ = "there are other GPUs, which needs NCCL";
  } else if (!fits) {
    why_not_shared_ = "more than " + std::to_string(device::kMaxSources) + " ranks share one";
  } else {
    shared_ = std::make_unique<SharedGpu>(stream_, gpus, self_,
                                          std::clamp(packed_bytes_, kMinArenaBytes, kMaxArenaBytes) / 16 * 16);
    round_ = Round::kOffer;
  }
}

std::string Launcher::way() const {
  if (by_nccl_) return kernels_warning_;
  if (shared_ != nullptr) {
    return why_not_nccl_ + ": allreduce and broadcast go through the memory of that GPU (CUDA IPC" +
           (shared_->gpu_count() > 1 ? ", and NCCL between the GPUs" : "") +
           "); what else there is, is copied to the host and done there. Give each rank a GPU of its own for more "
           "speed.";
  }
  return why_not_nccl_ + (why_not_shared_.empty() ? "" : ", and cannot meet in its memory: " + why_not_shared_) +
         "; tensors of GPUs are copied to the host and reduced there. Remedy: give each rank a GPU of its own and "
         "the same NCCL; `ringcore doctor` shows the libraries.";
}

bool Launcher::takes(const Descriptor& descriptor) const {
  if (!by_nccl_ && shared_ == nullptr) return false;
  const bool all_reduced = descriptor.collective == Collective::kAllreduce;
  if (shared_ != nullptr && !all_reduced && descriptor.collective != Collective::kBroadcast) return false;
  if (!reduces(descriptor.collective)) return true;
  // NCCL's order of additions is its own.
  if (deterministic_ && is_float(descriptor.dtype)) return false;
  const bool scales = descriptor.prescale != 1.0 || final_scale(descriptor, size_) != 1.0;
  if (scales && (!kernels_ || !is_float(descriptor.dtype))) return false;
  const bool needs_nccl = shared_ == nullptr || shared_->gpu_count() > 1;
  return !needs_nccl || device::nccl_dtype(descriptor.dtype).has_value();
}

std::string Launcher::refuses_capture(const Descriptor& descriptor) const {
  if (!by_nccl_) {
    return why_not_nccl_ +
           ", and what takes the place of NCCL then is no part of a graph. Remedy: give each rank a GPU of its own and "
           "NCCL (`ringcore doctor` shows it), or capture without this collective.";
  }
  if (!takes(descriptor)) {
    return "'" + descriptor.name + "' (" + descriptor.to_string() +
           ") is nothing that NCCL does: it would be copied to the host. Remedy: convert it to a float dtype, install "
           "NVRTC where it is scaled, and leave RINGCORE_DETERMINISTIC unset; or capture without it.";
  }
  if (!used_) {
    return "it is the first of its process set, and the ranks' GPUs are not connected yet. Remedy: run one step "
           "without capturing first.";
  }
  return "";
}

}  // namespace ringcore::carriers
