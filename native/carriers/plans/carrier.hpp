// Carries out operations on the host's memory: by a plan over the links, or by a library that does whole collectives on
// the same memory (carriers/mpi). The chooser says which, for each kind of operation and size.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/carrier.hpp"
#include "plan/backend.hpp"
#include "plan/chooser.hpp"

namespace ringcore::carriers {

// The buffers that tensors are packed into, one a data lane. They lie at the front of the arena, at the same offset on
// every rank, and so are visible to the other ranks of the host.
struct FusionBuffers {
  std::byte* arena = nullptr;  // null: no shared memory, private buffers are used
  std::size_t bytes_per_lane = 0;  // the buffer of lane l starts at (l - kFirstDataLane) * bytes_per_lane

  std::size_t offset(int lane) const { return (lane - transport::kFirstDataLane) * bytes_per_lane; }
};

class PlanCarrier final : public engine::Carrier {
 public:
  // `offered`: null where no plans can come from outside.
  PlanCarrier(engine::CarrierConfig config, std::vector<std::unique_ptr<plan::Backend>> backends,
              std::shared_ptr<plan::Offered> offered = nullptr);

  std::string_view name() const override { return "plans"; }
  bool takes(const engine::Descriptor& descriptor) const override { return !descriptor.captured; }
  std::size_t bucket_bytes() const override;
  std::size_t shared_bytes() const override;
  std::size_t partition_bytes() const override;
  bool fuses(const engine::Task& bucket, const engine::Descriptor& descriptor,
             const engine::Operation* own) const override;
  bool queue(engine::Task& task) override;
  bool may_start(const engine::Task& task) const override;
  void offer(std::span<const std::byte> offer) override;
  std::unique_ptr<engine::Run> start(engine::Task& task) override;
  bool make_way(int lane) override;
  std::string take_finding() override { return chooser_.take_finding(); }

 private:
  friend class HostRun;

  int size() const { return config_.topology.ranks(); }
  bool serves() const { return config_.self >= size(); }  // this node has no data
  // Whether the task's tensors are packed into memory of its own, not into what the tasks of a lane share.
  bool packs_apart(const engine::Task& task) const;
  // Whether the task's only tensor goes through the fusion buffer slice by slice.
  bool slices(const engine::Task& task) const;
  bool keeps_order(const engine::Task& task) const;
  void describe(plan::Query& query, const engine::Descriptor& descriptor) const;
  // What an allreduce between hosts asks for.
  plan::Query query_of(const engine::Task& task) const;

  engine::CarrierConfig config_;
  FusionBuffers fusion_;
  std::shared_ptr<plan::Offered> offered_;
  plan::Chooser chooser_;
  std::array<Memory, transport::kLaneCount> private_fusion_;
};

}  // namespace ringcore::carriers
