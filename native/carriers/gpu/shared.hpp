// Ranks of one host that share a GPU, where NCCL does not serve them: they meet in its memory.
//
// All pack their tensors into their own arena there. The first of the group, who leads it, reduces all arenas into its
// own; where there are other GPUs it goes on with their leaders through NCCL; and all copy the result from there. What
// is larger than an arena goes piece by piece. One leads, and not each for a share: a GPU runs one process at a time,
// so that shares would not be faster, but make it change more often.
//
// Words behind the arenas say how many pieces each rank has packed and taken. Streams wait for these words and write
// them, so that everything is launched at once, in the same order on all ranks, as NCCL's collectives are: the host
// agrees on nothing more, and waits for nobody.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carriers/gpu/arenas.hpp"
#include "device/communicator.hpp"
#include "device/kernels.hpp"
#include "device/reduce.hpp"
#include "engine/carrier.hpp"

namespace ringcore::carriers {

class SharedGpu {
 public:
  using Notice = SharedArenas::Notice;

  // `gpus`: the members that use each GPU, in ascending order, the GPUs by their first one. Begins to make the arena
  // and to compile the kernels.
  SharedGpu(std::shared_ptr<const device::Stream> stream, std::vector<std::vector<int>> gpus, int self,
            std::size_t arena_bytes);

  // What this rank tells the others, first of its own arena and then of theirs; null until it is known.
  const Notice* notice();
  // After everybody's first one, by member: opens the others' arenas.
  void open(std::span<const Notice> notices);

  // Whether this rank goes on with other GPUs through NCCL, and as which of how many ranks.
  bool links_gpus() const { return gpus_.size() > 1 && arenas_.place() == 0; }
  int gpu() const { return gpu_; }
  int gpu_count() const { return static_cast<int>(gpus_.size()); }

  // Allreduce and broadcast. `scale`: of the result.
  void begin(const engine::Task& task, double scale);
  // Gives the next part to the stream; false when it has all. `between_gpus`: null where this rank does not link them.
  bool step(device::Communicator* between_gpus);
  // Behind a task: what the stream is given from now on waits until all others have taken the result. False where this
  // rank's arena has been left alone.
  bool drain();
  void abort() { arenas_.abort(piece_); }

 private:
  // A tensor, and its place among those of the task when they are packed.
  struct Part {
    device::cuda::Pointer input;
    device::cuda::Pointer output;
    std::size_t at;
    std::size_t bytes;
  };

  const std::vector<int>& group() const { return gpus_[gpu_]; }
  bool contributes() const { return root_ == kNobody || (root_gpu_ == gpu_ && root_ == arenas_.place()); }
  void start_piece();
  void reduce();
  void pass_on(device::Communicator& between_gpus);
  void finish_piece();
  void copy(bool in, double factor) const;

  std::shared_ptr<const device::Stream> stream_;
  std::vector<std::vector<int>> gpus_;
  int gpu_;  // this rank's
  SharedArenas arenas_;
  std::future<const device::ReduceKernels*> compiled_;  // waits for that when it is destroyed
  const device::ReduceKernels* kernels_ = nullptr;
  std::uint32_t piece_ = 0;  // the number of the last one

  // The task that is being launched.
  static constexpr int kNobody = -1;
  std::vector<Part> parts_;  // none where this rank has joined
  Collective collective_{};
  DType dtype_{};
  ReduceOp op_{};
  double prescale_ = 1.0;
  double sum_scale_ = 1.0;  // of the sum of this GPU
  double copy_scale_ = 1.0;  // of what is copied from there
  int root_ = kNobody;  // a broadcast's: its place on its GPU
  int root_gpu_ = 0;
  std::size_t bytes_ = 0;
  std::size_t piece_at_ = 0;
  std::size_t piece_bytes_ = 0;  // 0: none was started
};

}  // namespace ringcore::carriers
