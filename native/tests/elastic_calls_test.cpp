// What callers of elastic engines see when the members change at a chosen moment.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/view_change.hpp"
#include "sim_job.hpp"

namespace ringcore::testing {
namespace {

using OperationPointer = std::shared_ptr<engine::Operation>;

constexpr std::uint32_t kFirstEpoch = 7;
constexpr int kLane = transport::kFirstDataLane;
constexpr std::size_t kMany = 10'000;  // too much for an announcement, and for a lane

void make_elastic(engine::EngineConfig& config, engine::EngineSettings& settings) {
  config.epoch = kFirstEpoch;
  settings.elastic = true;
  settings.eager_limit_bytes = 1024;
  settings.elastic_timeout = 2 * kSecond;
}

SimJob elastic_job(int ranks, int direct_members = 16) { return SimJob(ranks, {}, direct_members, {}, make_elastic); }

OperationPointer submit(SimJob& job, Rank rank, const std::string& name, std::vector<float>& data,
                        engine::ProcessSetId set = engine::kWorld) {
  OperationPointer operation = SimJob::allreduce(name, data);
  operation->process_set = set;
  operation->awaited = true;
  job.submit(rank, operation);
  return operation;
}

bool all_done(const std::vector<OperationPointer>& operations) {
  return std::ranges::all_of(operations, [](const OperationPointer& operation) { return operation->done(); });
}

// Whether all of the first `members` ranks have begun an epoch of just these.
bool go_on(SimJob& job, int members) {
  for (Rank rank = 0; rank < members; ++rank) {
    if (job.engine(rank).membership().size() != members) return false;
  }
  return true;
}

void accept_changes(SimJob& job, int members) {
  for (Rank rank = 0; rank < members; ++rank) {
    job.engine(rank).accept_change(job.engine(rank).membership().epoch());
  }
}

// An allreduce of the first `members` ranks sums up what these contribute, and nothing else.
void check_that_they_sum(SimJob& job, int members, engine::ProcessSetId set = engine::kWorld) {
  std::vector<std::vector<float>> data;
  for (Rank rank = 0; rank < members; ++rank) data.emplace_back(kMany, static_cast<float>(1 << rank));
  std::vector<OperationPointer> operations;
  for (Rank rank = 0; rank < members; ++rank) {
    operations.push_back(submit(job, rank, "sum", data[static_cast<std::size_t>(rank)], set));
  }
  REQUIRE(job.run_until([&] { return all_done(operations); }));
  for (Rank rank = 0; rank < members; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    REQUIRE_MESSAGE(operations[index]->error == nullptr, std::string(operations[index]->error->what()));
    CHECK(data[index] == std::vector<float>(kMany, static_cast<float>((1 << members) - 1)));
  }
}

ErrorKind kind_of_refusal(SimJob& job, Rank rank, const OperationPointer& operation) {
  try {
    job.submit(rank, operation);
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("it was taken");
  return {};
}

// What becomes of a run that somebody else carries out, who stores wherever its operands lie until it is given up.
struct Outside {
  int running = 0;
  int abandoned = 0;
  int dropped_in_use = 0;  // what it stores into may be gone
  int aborted = 0;
};

class OutsideRun final : public engine::Run {
 public:
  explicit OutsideRun(Outside& outside) : outside_(outside) { ++outside_.running; }
  ~OutsideRun() override { ++outside_.dropped_in_use; }
  bool progress() override { return false; }
  bool done() const override { return false; }
  bool waits_for(Rank) const override { return true; }
  std::string waiting_for() const override { return "somebody outside"; }
  bool in_use() const override { return true; }
  void abandon() override { ++outside_.abandoned; }

 private:
  Outside& outside_;
};

class OutsideCarrier final : public engine::Carrier {
 public:
  explicit OutsideCarrier(Outside& outside) : outside_(outside) {}
  std::string_view name() const override { return "somebody outside"; }
  bool takes(const engine::Descriptor&) const override { return true; }
  std::size_t bucket_bytes() const override { return 0; }
  bool fuses(const engine::Task&, const engine::Descriptor&, const engine::Operation*) const override { return false; }
  bool queue(engine::Task&) override { return true; }
  std::unique_ptr<engine::Run> start(engine::Task&) override { return std::make_unique<OutsideRun>(outside_); }
  void abort() override { ++outside_.aborted; }

 private:
  Outside& outside_;
};

}  // namespace

TEST_CASE("elastic: what others carry out for a rank is given up before it answers anybody that it stands still") {
  Outside outside[2];
  const auto change = [&outside](engine::EngineConfig& config, engine::EngineSettings& settings) {
    make_elastic(config, settings);
    config.has_witness = true;
    config.make_carriers = [&own = outside[config.rank]](const engine::CarrierConfig&) {
      std::vector<std::unique_ptr<engine::Carrier>> carriers;
      carriers.push_back(std::make_unique<OutsideCarrier>(own));
      return carriers;
    };
  };
  SimJob job(2, {}, 16, {}, change);
  engine::Witness witness({.epoch = kFirstEpoch, .members = {0, 1}});
  std::vector<float> data[2] = {std::vector<float>(kMany), std::vector<float>(kMany)};
  const OperationPointer operation = submit(job, 0, "x", data[0]);
  submit(job, 1, "x", data[1]);
  REQUIRE(job.run_until([&] { return outside[0].running == 1; }));

  job.network().kill(1);
  std::vector<std::vector<std::byte>> said;
  const auto asks = [&] {
    said = job.engine(0).take_for_witness();
    return !said.empty();
  };
  REQUIRE(job.run_until(asks));
  CHECK(job.engine(0).membership().epoch() == kFirstEpoch);
  CHECK_FALSE(operation->done());
  CHECK_FALSE(job.engine(0).running());
  CHECK(outside[0].abandoned == 1);
  CHECK(outside[0].aborted == 1);

  const auto goes_on = [&] {
    for (const auto& bytes : said) {
      const auto answer = witness.receive(engine::decode_view_message(bytes));
      if (answer) job.engine(0).hear_witness(engine::encode(*answer));
    }
    said = job.engine(0).take_for_witness();
    return job.engine(0).membership().size() == 1;
  };
  REQUIRE(job.run_until(goes_on));
  REQUIRE(operation->done());
  CHECK(operation->error->kind() == ErrorKind::kMembershipChanged);
  CHECK(operation->in_use);  // the caller must let its tensor stay
  CHECK(outside[0].dropped_in_use == 0);
}

TEST_CASE("elastic: nothing is taken of a caller that goes back and does not know of the change") {
  SimJob job = elastic_job(3);
  job.engine(1).fail_on_change(true);  // one is enough
  job.network().kill(2);
  REQUIRE(job.run_until([&] { return go_on(job, 2); }));
  // Rank 0 has begun the step again while rank 1 still computes, and comes with what belongs to the step before.
  job.engine(0).accept_change(job.engine(0).membership().epoch());
  std::vector<float> data[2] = {std::vector<float>(4, 1.0F), std::vector<float>(4, 2.0F)};
  std::vector<float> stale(4, 100.0F);
  std::vector<OperationPointer> again{submit(job, 0, "gradient", data[0])};
  CHECK(kind_of_refusal(job, 1, SimJob::allreduce("gradient", stale)) == ErrorKind::kMembershipChanged);
  const auto join = std::make_shared<engine::Operation>();
  join->join = true;
  CHECK(kind_of_refusal(job, 1, join) == ErrorKind::kMembershipChanged);
  CHECK_THROWS_AS(job.engine(1).add_process_set({0, 1}), Error);
  job.engine(1).accept_change(kFirstEpoch);  // another one
  CHECK(kind_of_refusal(job, 1, SimJob::allreduce("gradient", stale)) == ErrorKind::kMembershipChanged);

  job.engine(1).accept_change(job.engine(1).membership().epoch());
  again.push_back(submit(job, 1, "gradient", data[1]));
  REQUIRE(job.run_until([&] { return all_done(again); }));
  for (Rank rank = 0; rank < 2; ++rank) {
    REQUIRE_MESSAGE(again[static_cast<std::size_t>(rank)]->error == nullptr,
                    std::string(again[static_cast<std::size_t>(rank)]->error->what()));
    CHECK(data[rank] == std::vector<float>(4, 3.0F));
  }
  CHECK(stale == std::vector<float>(4, 100.0F));
}

TEST_CASE("elastic: who leaves early is a member until somebody needs it, and then all go on without it") {
  for (const bool both_wait : {false, true}) {
    CAPTURE(both_wait);
    SimJob job = elastic_job(3);
    engine::ProcessSetId set = engine::kWorld;
    for (Rank rank = 0; rank < 3; ++rank) set = job.engine(rank).add_process_set({0, 1});
    job.engine(2).leave("");
    REQUIRE(job.run_until([&] {
      const auto heard = [&](Rank rank) { return job.engine(rank).membership().peer(2)->left; };
      return heard(0) && heard(1) && job.engine(2).farewell_seen();
    }));
    job.network().kill(2);
    check_that_they_sum(job, 2, set);
    for (Rank rank = 0; rank < 2; ++rank) CHECK(job.engine(rank).membership().epoch() == kFirstEpoch);

    std::vector<float> data[2] = {std::vector<float>(4, 1.0F), std::vector<float>(4, 1.0F)};
    std::vector<OperationPointer> needing;
    for (Rank rank = 0; rank < (both_wait ? 2 : 1); ++rank) needing.push_back(submit(job, rank, "x", data[rank]));
    REQUIRE(job.run_until([&] { return go_on(job, 2); }));
    if (!both_wait) needing.push_back(submit(job, 1, "x", data[1]));
    REQUIRE(job.run_until([&] { return all_done(needing); }));
    for (Rank rank = 0; rank < 2; ++rank) {
      CHECK(needing[static_cast<std::size_t>(rank)]->error == nullptr);
      CHECK(data[rank] == std::vector<float>(4, 2.0F));
      const std::string why = job.engine(rank).change()->what();
      CHECK_MESSAGE(why.find("rank 2 ") != std::string::npos, why);
    }
    accept_changes(job, 2);
    check_that_they_sum(job, 2);
    check_that_they_sum(job, 2, set);
  }
}

TEST_CASE(
    "elastic: along a tree somebody leaves, and at any moment the others submit what needs it: they go on without it") {
  for (const Rank leaver : {0, 3}) {
    for (int moment = 0; moment < 40; ++moment) {
      CAPTURE(leaver);
      CAPTURE(moment);
      SimJob job = elastic_job(4, 1);
      check_that_they_sum(job, 4);
      job.engine(leaver).leave("");
      int moments = 0;
      job.run_until([&] { return ++moments > 3 * moment; });
      std::vector<std::vector<float>> data(4, std::vector<float>(4, 1.0F));
      std::vector<OperationPointer> needing;
      for (Rank rank = 0; rank < 4; ++rank) {
        if (rank != leaver) needing.push_back(submit(job, rank, "x", data[static_cast<std::size_t>(rank)]));
      }
      REQUIRE(job.run_until([&] { return all_done(needing); }));
      for (const OperationPointer& operation : needing) CHECK(operation->error == nullptr);
      for (Rank rank = 0; rank < 4; ++rank) {
        if (rank != leaver) CHECK(data[static_cast<std::size_t>(rank)] == std::vector<float>(4, 3.0F));
      }
      REQUIRE(job.run_until([&] { return job.engine(leaver).farewell_seen(); }));
    }
  }
}

TEST_CASE("elastic: who leaves while another one is lost does not wait for the end of a tree that stands still") {
  constexpr Rank kStaying = 3;
  for (int moment = 0; moment < 40; ++moment) {
    CAPTURE(moment);
    SimJob job = elastic_job(kStaying + 2, 1);
    check_that_they_sum(job, kStaying + 2);
    job.engine(kStaying).leave("");
    int moments = 0;
    job.run_until([&] { return ++moments > moment; });
    job.network().kill(kStaying + 1);
    std::vector<std::vector<float>> data(kStaying, std::vector<float>(4, 1.0F));
    std::vector<OperationPointer> needing;
    for (Rank rank = 0; rank < kStaying; ++rank) {
      needing.push_back(submit(job, rank, "x", data[static_cast<std::size_t>(rank)]));
    }
    REQUIRE(job.run_until([&] { return all_done(needing); }));
    for (Rank rank = 0; rank < kStaying; ++rank) {
      const auto& error = needing[static_cast<std::size_t>(rank)]->error;
      CHECK_MESSAGE(error == nullptr, std::string(error == nullptr ? "" : error->what()));
      CHECK(data[static_cast<std::size_t>(rank)] == std::vector<float>(4, 3.0F));
    }
  }
}

TEST_CASE("elastic: whoever has joined is not waited for to have results, from each to each and along a tree") {
  for (const int direct_members : {16, 1}) {
    CAPTURE(direct_members);
    SimJob job = elastic_job(4, direct_members);
    const auto joined = std::make_shared<engine::Operation>();
    joined->join = true;
    job.submit(2, joined);
    std::vector<std::vector<float>> data;
    std::vector<OperationPointer> operations;
    for (Rank rank = 0; rank < 4; ++rank) data.emplace_back(kMany, static_cast<float>(1 << rank));
    for (const Rank rank : {0, 1, 3}) {
      operations.push_back(submit(job, rank, "x", data[static_cast<std::size_t>(rank)]));
    }
    REQUIRE(job.run_until([&] { return all_done(operations); }));
    for (const Rank rank : {0, 1, 3}) CHECK(data[static_cast<std::size_t>(rank)] == std::vector<float>(kMany, 11.0F));
    CHECK_FALSE(joined->done());
    CHECK(job.engine(0).membership().epoch() == kFirstEpoch);
  }
}

TEST_CASE("elastic: whoever leaves is not waited for to have its result") {
  SimJob job = elastic_job(3);
  std::vector<std::vector<float>> data;
  std::vector<OperationPointer> operations;
  for (Rank rank = 0; rank < 3; ++rank) data.emplace_back(4, static_cast<float>(1 << rank));
  job.network().delay(0, 2, transport::kControlLane, SimJob::kTimeout / 20);
  for (Rank rank = 0; rank < 3; ++rank) {
    operations.push_back(submit(job, rank, "x", data[static_cast<std::size_t>(rank)]));
  }
  REQUIRE(job.run_until([&] { return operations[0]->carried_out && operations[1]->carried_out; }));
  CHECK_FALSE(operations[0]->done());
  job.engine(2).leave("");
  REQUIRE(job.run_until([&] { return operations[0]->done() && operations[1]->done(); }));
  for (Rank rank = 0; rank < 2; ++rank) {
    CHECK(data[static_cast<std::size_t>(rank)] == std::vector<float>(4, 7.0F));
    CHECK(job.engine(rank).membership().epoch() == kFirstEpoch);
  }
}

TEST_CASE("elastic: what one rank has got by the short cut, and another one not, is the same release to both") {
  SimJob job = elastic_job(3);
  std::vector<std::vector<float>> data;
  std::vector<OperationPointer> operations;
  for (Rank rank = 0; rank < 3; ++rank) data.emplace_back(4, static_cast<float>(1 << rank));
  const auto submit_all = [&](const std::vector<Rank>& ranks, const std::string& name) {
    for (const Rank rank : ranks) operations.push_back(submit(job, rank, name, data[static_cast<std::size_t>(rank)]));
  };
  const auto heard = [&job](Rank from) { return job.engine(1).membership().peer(from)->received_records; };
  // Rank 1 has heard of it before it submits it itself. A lane that has no room for all of it ends the short cut.
  int short_cuts = 0;
  for (int round = 0; round < 20 && short_cuts == 0; ++round) {
    const std::uint32_t before = heard(0) + heard(2);
    submit_all({0, 2}, "x");
    REQUIRE(job.run_until([&] { return heard(0) + heard(2) > before; }));
    submit_all({1}, "x");
    short_cuts += job.engine(0).in_short_cut() && !job.engine(1).in_short_cut() ? 1 : 0;
    REQUIRE(job.run_until([&] { return all_done(operations); }));
  }
  REQUIRE(short_cuts == 1);

  // The next one has a result on rank 0, and rank 1 does not even know that it may have one.
  operations.clear();
  for (Rank rank = 0; rank < 3; ++rank) data[static_cast<std::size_t>(rank)].assign(4, static_cast<float>(1 << rank));
  job.network().delay(2, 1, transport::kControlLane, SimJob::kTimeout / 20);
  submit_all({0, 1, 2}, "y");
  REQUIRE(job.run_until([&] { return operations[0]->carried_out; }));
  job.network().kill(2);
  REQUIRE(job.run_until([&] { return operations[0]->done() && operations[1]->done(); }));
  for (Rank rank = 0; rank < 2; ++rank) CHECK(data[static_cast<std::size_t>(rank)] == std::vector<float>(4, 3.0F));
}

TEST_CASE("elastic: a record of the epoch before that comes late means nothing in the next one") {
  SimJob job = elastic_job(4);
  std::vector<float> data(4, 1.0F);
  // Rank 1 hears of the next view from rank 0 long before it hears what rank 2 has announced in this one.
  REQUIRE(job.run_until([&] { return job.engine(1).membership().peer(2)->greeted; }));
  job.network().delay(2, 1, transport::kControlLane, SimJob::kTimeout / 20);
  const OperationPointer lost = submit(job, 2, "x", data);
  job.network().kill(3);
  REQUIRE(job.run_until([&] { return go_on(job, 3); }));
  CHECK_FALSE(lost->done());
  accept_changes(job, 3);
  std::vector<float> others[2] = {std::vector<float>(4, 1.0F), std::vector<float>(4, 1.0F)};
  for (Rank rank = 0; rank < 2; ++rank) submit(job, rank, "x", others[rank]);
  REQUIRE(job.run_until([&] { return lost->done(); }));
  CHECK(data == std::vector<float>(4, 3.0F));
  check_that_they_sum(job, 3);
}

TEST_CASE("elastic: what was set aside, or was about to be, does not stand in the way of the next epoch") {
  constexpr int kSets = 4;
  for (const std::size_t done_before : {0, 3, 3 * kSets}) {
    CAPTURE(done_before);
    SimJob job = elastic_job(3);
    std::vector<std::vector<float>> data(3 * kSets, std::vector<float>(kMany, 1.0F));
    std::vector<OperationPointer> operations;
    for (Rank rank = 0; rank < 3; ++rank) {
      for (int set = 1; set < kSets; ++set) job.engine(rank).add_process_set({0, 1, 2});
      for (int i = 0; i < kSets; ++i) {
        // The ranks begin at different ends.
        const int set = rank == 0 ? i : kSets - 1 - i;
        const auto operation = SimJob::allreduce("x", data[operations.size()]);
        operation->process_set = static_cast<engine::ProcessSetId>(set);
        operations.push_back(operation);
        job.submit(rank, operation);
        job.engine(rank).wanted(*operation, false);
      }
    }
    const auto count_done = [&] {
      return static_cast<std::size_t>(
          std::ranges::count_if(operations, [](const OperationPointer& operation) { return operation->done(); }));
    };
    REQUIRE(job.run_until([&] { return operations[0]->started_at != 0 && count_done() >= done_before; }));
    job.network().kill(2);
    REQUIRE(job.run_until([&] { return go_on(job, 2); }));
    CHECK(count_done() >= 2 * kSets);
    accept_changes(job, 2);
    for (engine::ProcessSetId set = 0; set < kSets; ++set) check_that_they_sum(job, 2, set);
  }
}

TEST_CASE("elastic: a process set that only some had added, or removed, when one was lost does not shift the numbers") {
  SimJob job = elastic_job(3);
  const auto add = [&job](Rank rank) { return job.engine(rank).add_process_set({0, 1}); };
  std::vector<engine::ProcessSetId> removed(2);
  for (Rank rank = 0; rank < 3; ++rank) {
    const engine::ProcessSetId set = add(rank);
    if (rank < 2) removed[static_cast<std::size_t>(rank)] = set;
  }
  add(0);
  job.engine(1).remove_process_set(removed[1]);
  job.network().kill(2);
  REQUIRE(job.run_until([&] { return go_on(job, 2); }));
  accept_changes(job, 2);
  check_that_they_sum(job, 2);  // and so have heard each other
  job.engine(0).remove_process_set(removed[0]);
  for (int again = 0; again < 2; ++again) {
    const engine::ProcessSetId set = add(0);
    CHECK(add(1) == set);
    check_that_they_sum(job, 2, set);
  }
}

TEST_CASE("elastic: what is left of the epoch before is not taken for what stands in the way of two process sets") {
  SimJob job = elastic_job(4);
  std::vector<engine::ProcessSetId> sets;
  for (int i = 0; i < 2; ++i) {
    for (Rank rank = 0; rank < 4; ++rank) {
      const engine::ProcessSetId set = job.engine(rank).add_process_set({0, 2});
      if (rank == 0) sets.push_back(set);
    }
  }
  std::vector<std::vector<float>> data(4, std::vector<float>(kMany, 1.0F));
  for (Rank rank = 0; rank < 4; ++rank) submit(job, rank, "x", data[static_cast<std::size_t>(rank)]);
  // The middle of a transfer from rank 1 comes to rank 2 in the next epoch, and only then where it ends.
  transport::Link& writer = *job.engine(1).membership().peer(2)->link;
  transport::Link& reader = *job.engine(2).membership().peer(1)->link;
  REQUIRE(job.run_until([&] { return reader.lane_use(kLane).receiving; }));
  job.network().delay(1, 2, kLane, SimJob::kTimeout / 40);
  job.network().delay(1, 2, transport::kControlLane, SimJob::kTimeout / 20);
  job.network().kill(3);
  REQUIRE(job.run_until([&] { return go_on(job, 3); }));
  REQUIRE(reader.lane_use(kLane).taken < writer.lane_use(kLane).written);
  accept_changes(job, 3);
  std::vector<std::vector<float>> again(4, std::vector<float>(kMany, 1.0F));
  std::vector<OperationPointer> operations;
  for (const Rank rank : {0, 2}) {
    for (const engine::ProcessSetId set : sets) {
      operations.push_back(submit(job, rank, "y", again[operations.size()], set));
    }
  }
  REQUIRE(job.run_until([&] { return all_done(operations); }));
  for (std::size_t i = 0; i < operations.size(); ++i) {
    REQUIRE_MESSAGE(operations[i]->error == nullptr, std::string(operations[i]->error->what()));
    CHECK(again[i] == std::vector<float>(kMany, 2.0F));
  }
  check_that_they_sum(job, 3);
}

TEST_CASE("elastic: that ranks waited in the epoch before is no deadlock in the next one, where it is found again") {
  const auto change = [](engine::EngineConfig& config, engine::EngineSettings& settings) {
    make_elastic(config, settings);
    settings.standstill = SimJob::kTimeout / 40;
  };
  SimJob job(3, {}, 16, {}, change);
  job.engine(0).fail_on_change(true);
  std::vector<std::vector<float>> data(3, std::vector<float>(4, 1.0F));
  std::vector<OperationPointer> waits(2);
  const auto wait = [&](Rank rank, const std::string& name) {
    const auto index = static_cast<std::size_t>(rank);
    waits[index] = submit(job, rank, name, data[index]);
  };
  const auto tell = [&] {
    for (Rank rank = 0; rank < 2; ++rank) {
      const engine::Operation* operation = waits[static_cast<std::size_t>(rank)].get();
      if (operation == nullptr || operation->done()) continue;
      job.engine(rank).all_wait(std::span(&operation, 1));
    }
  };
  const auto pass = [&](Nanoseconds duration) {
    const Nanoseconds end = job.network().clock().now() + duration;
    REQUIRE(job.run_until([&] { return tell(), job.network().clock().now() >= end; }));
  };
  // Rank 2 computes while the others wait for each other, and for it; then it is lost.
  wait(0, "x");
  wait(1, "y");
  pass(SimJob::kTimeout / 8);
  for (const OperationPointer& operation : waits) CHECK_FALSE(operation->done());
  job.network().kill(2);
  REQUIRE(job.run_until([&] { return tell(), go_on(job, 2); }));
  for (const OperationPointer& operation : waits) {
    CHECK(operation->error->kind() == ErrorKind::kMembershipChanged);
    const std::string said = operation->error->what();
    CHECK(said.find("The job goes on with 2 of 3 ranks, where this is rank ") != std::string::npos);
    CHECK(said.find("epoch") == std::string::npos);  // which is an epoch of training for whoever reads it
  }
  accept_changes(job, 2);

  // Now rank 1 is the one that computes, and both wait as before only later.
  waits[1] = nullptr;
  wait(0, "x");
  pass(SimJob::kTimeout / 8);
  CHECK_FALSE(waits[0]->done());
  wait(1, "y");
  REQUIRE(job.run_until([&] { return tell(), all_done(waits); }));
  for (const OperationPointer& operation : waits) {
    REQUIRE(operation->error != nullptr);
    CHECK(operation->error->kind() == ErrorKind::kDeadlock);
  }
  check_that_they_sum(job, 2);
}

TEST_CASE("elastic: ranks that are busy with each other are not late, till both have come to an operation again") {
  SimJob job = elastic_job(3);
  job.engine(1).excuse({0, 2});
  std::vector<std::vector<float>> data(4, std::vector<float>(kMany, 1.0F));
  std::vector<OperationPointer> first = {submit(job, 1, "x", data[1])};
  const OperationPointer second = submit(job, 1, "y", data[3]);
  const Nanoseconds begin = job.network().clock().now();
  REQUIRE(job.run_until([&] { return job.network().clock().now() > begin + 3 * SimJob::kTimeout; }));
  CHECK_FALSE(first[0]->done());
  for (const Rank rank : {0, 2}) first.push_back(submit(job, rank, "x", data[static_cast<std::size_t>(rank)]));
  REQUIRE(job.run_until([&] { return all_done(first); }));
  for (const OperationPointer& operation : first) CHECK(operation->error == nullptr);
  // From here on they are late as others are, and have as long.
  const Nanoseconds then = job.network().clock().now();
  REQUIRE(job.run_until([&] { return second->done(); }));
  REQUIRE(second->error != nullptr);
  CHECK(second->error->kind() == ErrorKind::kTimeout);
  CHECK(job.network().clock().now() > then + SimJob::kTimeout / 2);
}

}  // namespace ringcore::testing
