#include "plan/verifier/shape.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/verifier/flaw.hpp"

namespace ringcore::plan {
namespace {

// Indices in range, operands of the right number, one channel for each ordered pair of ranks.
class Shape {
 public:
  Shape(const Header& header, const Topology& topology, Rank rank, const Program& program)
      : header_(header), topology_(topology), rank_(rank), program_(program) {}

  void check() {
    const std::vector<Channel>& channels = program_.channels;
    for (channel_ = 0; channel_ < channels.size(); ++channel_) {
      for (step_ = 0; step_ < channels[channel_].size(); ++step_) check_step(channels[channel_][step_]);
    }
    check_segments();
  }

 private:
  [[noreturn]] void flaw(const std::string& what) const { flaw_at(header_, rank_, channel_, step_, what); }

  void check_segments() const {
    const std::vector<std::size_t>& ends = program_.segment_ends;
    if (ends.empty()) return;
    if (program_.channels.size() != 1 || !std::is_sorted(ends.begin(), ends.end()) ||
        ends.back() != program_.channels[0].size()) {
      throw Flaw{header_.generator + ": rank " + std::to_string(rank_) + ": its segments are not its program"};
    }
  }

  void check_step(const Step& step) {
    for (const ChunkRef& target : step.targets) check_target(target);
    for (const auto* refs : {&step.sources, &step.targets}) {
      for (const ChunkRef& ref : *refs) check_ref(step, ref);
    }
    const bool has_peer = step.kind != StepKind::kReduce;
    if (has_peer && (step.peer < 0 || step.peer >= header_.nodes || step.peer == rank_)) flaw("no such peer");
    if (step.after_channel >= static_cast<int>(program_.channels.size())) flaw("no such channel");
    if (step.after_channel >= 0 && step.after_step < 0) flaw("no such step");
    check_quantised(step);
    switch (step.kind) {
      case StepKind::kSend: check_send(step); return same_channel(sends_in_, step.peer);
      case StepKind::kSignal: operands(step, 0, 0); return same_channel(sends_in_, step.peer);
      case StepKind::kWait: operands(step, 0, 0); return same_channel(receives_in_, step.peer);
      case StepKind::kRecv: check_recv(step); return same_channel(receives_in_, step.peer);
      case StepKind::kRecvReduce:
        operands(step, 0, std::max<std::size_t>(1, step.targets.size()));
        return same_channel(receives_in_, step.peer);
      case StepKind::kReduce:
        if (step.sources.empty() || step.targets.empty()) flaw("wrong operands");
        return;
    }
  }

  void check_send(const Step& step) const {
    operands(step, std::max<std::size_t>(1, step.sources.size()), 0);
    if (header_.collective != Collective::kAlltoall || header_.needs_even_blocks()) return;
    for (const ChunkRef& source : step.sources) {
      if (source.buffer != Buffer::kInput || block_of(source) != step.peer) flaw("it passes on blocks that may differ");
    }
  }

  void check_recv(const Step& step) const {
    const auto is_scratch = [](const ChunkRef& ref) { return ref.buffer == Buffer::kScratch; };
    const bool scratch = std::any_of(step.targets.begin(), step.targets.end(), is_scratch);
    const bool says_size = scratch && !header_.needs_even_blocks();
    if (says_size && step.targets.size() > 1) flaw("it receives several chunks whose sizes nothing says");
    const bool may_say = scratch && step.targets.size() == 1;
    operands(step, says_size || (may_say && !step.sources.empty()) ? 1 : 0,
             std::max<std::size_t>(1, step.targets.size()));
    if (header_.collective != Collective::kAlltoall || header_.needs_even_blocks()) return;
    for (const ChunkRef& target : step.targets) {
      if (block_of(target) != step.peer) flaw("it takes a block for that of another rank");
    }
  }

  void check_quantised(const Step& step) const {
    if (!step.quantised) return;
    const bool moves =
        step.kind == StepKind::kSend || step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce;
    if (!moves || header_.compression == Compression::kNone) flaw("there is nothing to quantise");
    if (step.sources.size() > 1 || step.targets.size() > 1) flaw("it quantises several chunks at once");
  }

  // Whose data are the result may have them elsewhere.
  void check_target(const ChunkRef& target) const {
    if (target.buffer == Buffer::kInput) flaw("it writes an input");
    if (target.buffer != Buffer::kData) return;
    const bool roots_are_read =
        header_.collective == Collective::kBroadcast || header_.collective == Collective::kScatter;
    if (roots_are_read && target.rank == header_.root) flaw("it writes the root's data");
    const bool gathers = header_.collective == Collective::kAllgather || header_.collective == Collective::kGather;
    if (gathers && block_of(target) == target.rank) {
      flaw("it writes a rank's own block");
    }
  }

  Rank block_of(const ChunkRef& ref) const {
    return static_cast<Rank>(ref.chunk / std::max(1U, header_.chunks / static_cast<std::uint32_t>(header_.ranks)));
  }

  void check_ref(const Step& step, const ChunkRef& ref) const {
    const std::uint32_t limit = ref.buffer == Buffer::kScratch ? header_.scratch_chunks : header_.chunks;
    if (ref.rank < 0 || ref.rank >= header_.nodes || ref.chunk >= limit) flaw("a chunk does not exist");
    if (ref.rank == rank_) return;
    // Of what others give to an alltoall a rank knows where its own block lies.
    const bool is_named = ref.buffer == Buffer::kData || (ref.buffer == Buffer::kInput && block_of(ref) == rank_);
    if (!header_.one_sided || !is_named || step.kind != StepKind::kReduce ||
        topology_.host_of[ref.rank] != topology_.host_of[rank_] || !topology_.memory_shared_in_host) {
      flaw("it names memory that it cannot see");
    }
  }

  void operands(const Step& step, std::size_t sources, std::size_t targets) const {
    if (step.sources.size() != sources || step.targets.size() != targets) flaw("wrong operands");
  }

  void same_channel(std::unordered_map<Rank, std::size_t>& known, Rank peer) const {
    const auto [found, fresh] = known.emplace(peer, channel_);
    if (!fresh && found->second != channel_) flaw("the stream of a pair of ranks is used by two channels");
  }

  const Header& header_;
  const Topology& topology_;
  Rank rank_;
  const Program& program_;
  std::size_t channel_ = 0;
  std::size_t step_ = 0;
  std::unordered_map<Rank, std::size_t> sends_in_;
  std::unordered_map<Rank, std::size_t> receives_in_;
};

}  // namespace

void check_shape(const Excerpt& plan, const Topology& topology) {
  const Symmetry& symmetry = plan.symmetry;
  if (plan.ranks < 2 || static_cast<int>(plan.programs.size()) != symmetry.orbits() || topology.nodes() != plan.nodes ||
      topology.ranks() != plan.ranks) {
    throw Flaw{plan.generator + ": it does not have a program for each rank"};
  }
  if (plan.compression != Compression::kNone && plan.collective != Collective::kAllreduce) {
    throw Flaw{plan.generator + ": only sums that everybody gets are quantised"};
  }
  if (!symmetry.fits(plan)) throw Flaw{plan.generator + ": its chunks cannot be turned with its ranks"};
  for (int orbit = 0; orbit < symmetry.orbits(); ++orbit) {
    Shape(plan, topology, symmetry.representative(orbit), plan.programs[orbit]).check();
    if (plan.programs[orbit].segment_ends.size() != plan.programs[0].segment_ends.size()) {
      throw Flaw{plan.generator + ": its ranks have different segments"};
    }
  }
}

}  // namespace ringcore::plan
