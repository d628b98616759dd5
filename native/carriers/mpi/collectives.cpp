#include "carriers/mpi/collectives.hpp"

#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/reduce.hpp"

namespace ringcore::carriers {
namespace {

using plan::Backend;
using plan::Operands;
using plan::Query;
using plan::Run;
using transport::MpiLibrary;
using transport::MpiRequest;
using transport::MpiWorld;

// What MPI reads and writes while a collective is under way, besides the operands.
struct Private {
  std::vector<int> sizes;    // of the blocks of kData, in the collective's unit
  std::vector<int> offsets;
  std::vector<std::byte> result;  // of a reduce-scatter: the own block
};

class MpiRun final : public Run {
 public:
  MpiRun(std::shared_ptr<MpiWorld> world, const Query& query, Operands operands, int lane)
      : world_(std::move(world)),
        comm_(world_->comm(lane)),
        collective_(query.collective),
        root_(query.root),
        operands_(std::move(operands)),
        private_(std::make_unique<Private>()) {}

  ~MpiRun() override {
    if (!started_) return;
    world_->end_work();
    if (done_) return;
    // The job has failed, and MPI may still touch this.
    MpiWorld::abandon();
    [[maybe_unused]] const auto* leaked = private_.release();
  }

  bool progress() override {
    if (done_) return false;
    if (!started_) {
      guard([&] { request_ = start(world_->library()); });
      started_ = true;
      world_->begin_work();
    }
    guard([&] { done_ = world_->library().test(request_).has_value(); });
    if (done_) finish();
    return done_;
  }
  bool done() const override { return done_; }
  bool in_use() const override { return started_ && !done_; }
  void abandon() override { MpiWorld::abandon(); }
  // MPI does not tell for whom it waits.
  bool waits_for(Rank rank) const override { return !done_ && rank != world_->rank(); }
  std::string waiting_for() const override { return "MPI to end its " + std::string(name_of(collective_)); }

 private:
  template <class Call>
  static void guard(Call call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      MpiWorld::abandon();
      throw Error(ErrorKind::kPeerLost, std::string("MPI failed: ") + error.what());
    }
  }

  void lay_out(std::size_t unit) {
    for (int r = 0; r < world_->size(); ++r) {
      const auto chunk = static_cast<std::uint32_t>(r);
      private_->sizes.push_back(static_cast<int>(operands_.data_layout.size(chunk) * unit));
      private_->offsets.push_back(static_cast<int>(operands_.data_layout.offset(chunk) * unit));
    }
  }

  MpiRequest start(MpiLibrary& library) {
    const std::size_t element = size_of(operands_.dtype);
    switch (collective_) {
      case Collective::kAllreduce:
        return library.allreduce(comm_, operands_.data, operands_.data_layout.size(0), operands_.dtype, operands_.op);
      case Collective::kBroadcast:
        return library.broadcast(comm_, operands_.data, operands_.data_layout.size(0) * element, root_);
      case Collective::kAllgather:
        lay_out(element);
        return library.allgather(comm_, operands_.data, private_->sizes, private_->offsets);
      case Collective::kReduceScatter:
        lay_out(1);
        private_->result.resize(own_block() * element);
        return library.reduce_scatter(comm_, operands_.data, private_->result.data(), private_->sizes, operands_.dtype,
                                      operands_.op);
      case Collective::kAlltoall:
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kBarrier: break;
    }
    throw Error(ErrorKind::kInvalidArgument, "MPI was asked for a collective that it does not offer");
  }

  std::size_t own_block() const { return operands_.data_layout.size(static_cast<std::uint32_t>(world_->rank())); }

  void finish() {
    std::byte* sum = operands_.data;
    std::size_t count = 0;
    if (collective_ == Collective::kAllreduce) count = operands_.data_layout.size(0);
    if (collective_ == Collective::kReduceScatter) {
      const std::vector<std::byte>& result = private_->result;
      sum += operands_.data_layout.offset(static_cast<std::uint32_t>(world_->rank())) * size_of(operands_.dtype);
      count = own_block();
      if (count > 0) std::memcpy(sum, result.data(), result.size());
    }
    if (operands_.final_scale != 1.0) scale_in_place(operands_.dtype, sum, count, operands_.final_scale);
  }

  std::shared_ptr<MpiWorld> world_;
  transport::MpiComm comm_;
  Collective collective_;
  Rank root_;
  Operands operands_;
  std::unique_ptr<Private> private_;
  MpiRequest request_ = 0;
  bool started_ = false;
  bool done_ = false;
};

class MpiBackend final : public Backend {
 public:
  explicit MpiBackend(std::shared_ptr<MpiWorld> world) : world_(std::move(world)) {}

  std::string_view name() const override { return "mpi"; }

  bool offers(const Query& query) const override {
    if (query.bytes == 0 || query.bytes > MpiLibrary::kMaxCount) return false;
    switch (query.collective) {
      case Collective::kBroadcast:
      case Collective::kAllgather: return true;
      case Collective::kAllreduce:
      case Collective::kReduceScatter: {
        // MPI's minimum and maximum lose NaN.
        const bool loses = is_float(query.dtype) && (query.op == ReduceOp::kMin || query.op == ReduceOp::kMax);
        return !loses && world_->library().can_reduce(query.dtype, query.op);
      }
      case Collective::kAlltoall:
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter:
      case Collective::kBarrier: return false;
    }
    __builtin_unreachable();
  }

  // Nobody knows what the MPI knows of the network: it is always tried.
  double predict_seconds(const Query&, std::size_t) const override { return 0; }

  std::unique_ptr<Run> start(const Query& query, Operands operands, int lane) override {
    return std::make_unique<MpiRun>(world_, query, std::move(operands), lane);
  }

 private:
  std::shared_ptr<MpiWorld> world_;
};

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(std::shared_ptr<MpiWorld> world) {
  return std::make_unique<MpiBackend>(std::move(world));
}

}  // namespace ringcore::carriers
