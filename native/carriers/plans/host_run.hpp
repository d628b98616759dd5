// A task on the host's memory, from its start to its end: where its data lies, what runs on it, what the operations get.
//
// In three files: host_run.cpp is a run's course, host_collectives.cpp what a tensor is to each collective, packing.cpp what
// is packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carriers/plans/carrier.hpp"
#include "carriers/plans/executor.hpp"
#include "engine/carrier.hpp"

namespace ringcore::carriers {

class HostRun final : public engine::Run {
 public:
  // The task outlives it, and is written to: its operations get their results.
  HostRun(PlanCarrier& carrier, engine::Task& task);

  bool progress() override;
  bool done() const override { return done_; }
  bool waits_for(Rank rank) const override { return run_->waits_for(rank); }
  std::string waiting_for() const override { return run_->waiting_for(); }
  bool sending() const override { return run_->sending(); }
  void hold(bool held) override { run_->hold(held); }
  bool in_use() const override { return run_->in_use(); }
  void abandon() override;

 private:
  // What must lie elsewhere, or be scaled.
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
    double scale;
  };

  const engine::CarrierConfig& config() const { return carrier_.config_; }
  int self() const { return config().self; }
  int size() const { return carrier_.size(); }
  bool timed() const { return config().timeline.enabled(); }
  Nanoseconds now() const { return config().clock.now(); }
  const engine::Descriptor& descriptor() const { return task_.descriptor(); }

  void start();
  void start_serving();
  void start_allreduce();
  void start_allgather();
  void start_broadcast();
  void start_reduce();
  void start_gather();
  void start_scatter();
  void start_reducescatter();
  bool reduces_in_place(plan::Query query);
  bool sums_from_inputs(plan::Query query);
  bool reads_registered() const;
  void start_alltoall();
  void start_gathers();
  void start_scatters();
  plan::Chooser::Choice choose(const plan::Query& query);
  void run(plan::Query query, plan::Operands operands, const std::vector<std::uint64_t>& blocks = {},
           const std::vector<std::uint64_t>& input_blocks = {});
  void run_plan(const plan::Plan& plan, plan::Operands operands);
  bool agree_on_trial();
  std::vector<transport::Pace> link_paces() const;
  plan::PortPace quickest_of(std::span<const transport::Pace> paces) const;
  void copy_first(std::byte* to, const std::byte* from, std::size_t bytes);
  bool departs_from_input(bool registered) const;
  void copy_meanwhile(std::byte* to, const std::byte* from, std::size_t bytes);
  bool copy_piece(std::optional<Copy>& rest, std::size_t most) const;
  void start_slice();
  bool next_slice();
  void use_fusion_arena(std::size_t bytes, plan::Operands& operands);
  void place_in_fusion_buffer(std::size_t bytes, plan::Operands& operands);
  void pack(std::byte* at) const;
  void place_alone(plan::Query& query, plan::Operands& operands);
  void place_input(const plan::Plan* plan, plan::Operands& operands);
  bool all_lie_registered() const;
  bool gives_evenly() const;
  std::vector<std::byte*> find_peers(std::size_t bytes) const;
  std::vector<std::byte*> find_inputs(std::size_t bytes) const;
  template <typename LocationOf>
  std::vector<std::byte*> find(std::size_t bytes, LocationOf location_of) const;
  std::vector<std::byte*> find_blocks(std::size_t row_bytes) const;
  void unpack();
  void unpack_gathers() const;
  void unpack_scatters() const;
  std::vector<std::vector<std::uint64_t>> shared_blocks() const;
  void take_own_block();
  void finish();
  void record_steps() const;
  void record_spans(Nanoseconds ran_at) const;

  PlanCarrier& carrier_;
  engine::Task& task_;
  Memory work_;  // for data that cannot lie in an operation's own memory
  Memory scratch_;
  std::byte* packed_ = nullptr;  // where the tensors were packed
  bool sliced_ = false;  // the tensor goes through there slice by slice
  std::size_t slice_begin_ = 0;  // bytes
  std::optional<Copy> copy_;  // still to be made, before the plan runs
  std::optional<Copy> copy_meanwhile_;  // or while it runs
  plan::Chooser::Choice choice_;
  bool agreeing_ = false;  // the operation has ended, `run_` is about what its trial has measured
  // One or the other, the present one.
  std::optional<PlanRun> plan_run_;
  std::unique_ptr<plan::Run> library_run_;
  plan::Run* run_ = nullptr;
  Nanoseconds ready_at_ = 0;
  bool done_ = false;
  Memory kept_;  // the lane's private fusion buffer, which an abandoned run goes on using
};

}  // namespace ringcore::carriers
