#include "carriers/switch/backend.hpp"

#include <string>
#include <utility>

#include "base/reduce.hpp"

namespace ringcore::carriers {
namespace {

using plan::Operands;
using plan::Query;

class SwitchRun final : public plan::Run {
 public:
  SwitchRun(std::shared_ptr<SwitchClients> clients, Operands operands, int lane)
      : clients_(std::move(clients)), client_(clients_->of(lane)), operands_(std::move(operands)) {}

  // Dropped before its end: the job has failed.
  ~SwitchRun() override {
    if (begun_ && !done_) client_.stop();
  }

  bool progress() override {
    if (done_) return false;
    const std::size_t count = operands_.data_layout.size(0);
    if (!begun_) {
      client_.begin({reinterpret_cast<float*>(operands_.data), count});
      begun_ = true;
    }
    const bool moved = client_.progress();
    done_ = client_.done();
    if (done_ && operands_.final_scale != 1.0) {
      scale_in_place(operands_.dtype, operands_.data, count, operands_.final_scale);
    }
    return moved || done_;
  }
  bool done() const override { return done_; }
  bool waits_for(Rank rank) const override { return !done_ && client_.waits_for(rank); }
  std::string waiting_for() const override { return client_.waiting_for(); }

 private:
  std::shared_ptr<SwitchClients> clients_;
  SwitchClient& client_;
  Operands operands_;
  bool begun_ = false;
  bool done_ = false;
};

class SwitchBackend final : public plan::Backend {
 public:
  explicit SwitchBackend(std::shared_ptr<SwitchClients> clients) : clients_(std::move(clients)) {}

  std::string_view name() const override { return "switch"; }
  bool offers(const Query& query) const override {
    return query.collective == Collective::kAllreduce && query.op == ReduceOp::kSum && query.dtype == DType::kFloat32 &&
           query.bytes > 0 && clients_->ranks() > 1;
  }
  // Nobody knows how far away it is: it is always tried.
  double predict_seconds(const Query&, std::size_t) const override { return 0; }
  std::unique_ptr<plan::Run> start(const Query&, Operands operands, int lane) override {
    return std::make_unique<SwitchRun>(clients_, std::move(operands), lane);
  }

 private:
  std::shared_ptr<SwitchClients> clients_;
};

}  // namespace

std::unique_ptr<plan::Backend> make_switch_backend(std::shared_ptr<SwitchClients> clients) {
  return std::make_unique<SwitchBackend>(std::move(clients));
}

}  // namespace ringcore::carriers
