#include "elastic_job.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "carriers/plans/carrier.hpp"
#include "carriers/standard.hpp"

namespace ringcore::simulation {
namespace {

constexpr Nanoseconds kTick = 5 * kMillisecond;
constexpr Nanoseconds kDeadline = 60 * kSecond;
constexpr std::size_t kFusionBytes = 4096;
constexpr std::size_t kMostPlaces = 4;
// Who was not let in by then will not be.
constexpr Nanoseconds kJoinPatience = 3 * kSecond;

// Counts for each place, of few, how many ranks have something to say of it.
std::int64_t count_of(engine::Place place) { return std::int64_t{1} << (8 * place); }

// ... and whether it leaves.
std::int64_t leaver_of(engine::Place place) { return count_of(place) << 32; }

// Of a compressed tensor, whose sums are not exact: each member has elements of its own.
void fill_compressed(std::vector<std::int64_t>& input, engine::Place place, std::int64_t step) {
  const std::size_t share = input.size() / kMostPlaces;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const bool is_own = i / share == static_cast<std::size_t>(place);
    input[i] = std::bit_cast<std::int64_t>(is_own ? static_cast<double>(2 * step + 1) : 0.0);
  }
}

std::size_t places_of(const ElasticOptions& options) {
  return static_cast<std::size_t>(options.ranks) + static_cast<std::size_t>(options.joiners);
}

transport::SimOptions options_of(const ElasticOptions& options) {
  transport::SimOptions made;
  made.lane_bytes = options.lane_bytes;
  made.longest_delay = 50'000;
  made.encrypted = options.encrypted;
  made.watched = options.seed % 2 == 0;
  if (!options.share_memory) return made;
  made.host_of.assign(places_of(options), 0);
  if (options.joiners_far) std::fill(made.host_of.begin() + options.ranks, made.host_of.end(), 1);
  made.reserved_bytes = 3 * kFusionBytes;
  return made;
}

}  // namespace

ElasticJob::ElasticJob(ElasticOptions options)
    : options_(options), network_(options.ranks + options.joiners, options.seed, options_of(options)) {
  ranks_.resize(places_of(options));
  engine::View first{.epoch = 7};
  for (engine::Place place = 0; place < options.ranks; ++place) first.members.push_back(place);
  if (options.witness) witness_.emplace(first);
  for (RankState& rank : ranks_) {
    rank.place = static_cast<engine::Place>(&rank - ranks_.data());
    if (rank.place < options.ranks) make_engine(rank, first.members, false);
  }
}

bool ElasticJob::is_there(const RankState& rank) const { return rank.engine != nullptr && network_.runs(rank.place); }

void ElasticJob::join(engine::Place place) {
  std::vector<engine::Place> others;  // also those who join
  bool with_members = false;
  for (const RankState& rank : ranks_) {
    if (!is_there(rank) || rank.has_left || rank.engine->failure() != nullptr) continue;
    if (options_.joiners_apart && rank.place >= options_.ranks) continue;
    others.push_back(rank.place);
    with_members = with_members || rank.phase != Phase::kJoining;
  }
  if (!with_members) return;  // nobody is left
  RankState& rank = ranks_[static_cast<std::size_t>(place)];
  make_engine(rank, others, true);
  rank.phase = Phase::kJoining;
  rank.ready_at = events_ + options_.joiners_prepare[static_cast<std::size_t>(place - options_.ranks)];
  for (const engine::Place other : others) {
    ranks_[static_cast<std::size_t>(other)].engine->meet(place, network_.link(other, place));
  }
}

// Null where the ranks have given it up: all members of an epoch, and for good.
std::unique_ptr<engine::Carrier> ElasticJob::make_switch_carrier(RankState& rank, const engine::CarrierConfig& config) {
  if (rank.plans_only && !config.plans_only) rank.flaw = "it goes back to a switch that was given up";
  rank.plans_only = config.plans_only;
  auto made = config.plans_only ? nullptr : std::make_shared<SimSwitch>(config.topology.ranks());
  const std::shared_ptr<SimSwitch>& known = switches_.emplace(config.epoch, std::move(made)).first->second;
  if ((known == nullptr) != config.plans_only) rank.flaw = "others of its epoch have not given up the same";
  if (known == nullptr) return nullptr;
  return std::make_unique<SimSwitchCarrier>(config, known, network_, [&rank] {
    rank.gave_up = rank.gave_up || rank.gives_up;
    return rank.gives_up;
  });
}

std::vector<std::unique_ptr<engine::Carrier>> ElasticJob::make_carriers(RankState& rank,
                                                                        const engine::CarrierConfig& config) {
  std::unique_ptr<engine::Carrier> at_switch = options_.at_switch ? make_switch_carrier(rank, config) : nullptr;
  if (!options_.on_device) {
    auto made = carriers::standard()(config);
    if (at_switch != nullptr) made.insert(made.begin(), std::move(at_switch));
    return made;
  }
  const engine::Engine* engine = rank.engine.get();  // null: it is being made, with the first epoch's members
  std::shared_ptr<SimDevices>& devices = devices_[engine == nullptr ? 7 : engine->membership().epoch()];
  if (devices == nullptr) devices = std::make_shared<SimDevices>(config.topology.ranks());
  auto device = std::make_unique<SimDeviceCarrier>(config, devices, network_, true);
  if (options_.device_notices) {
    std::vector<engine::Place> members(static_cast<std::size_t>(config.topology.ranks()));
    std::iota(members.begin(), members.end(), 0);
    if (engine != nullptr) members = engine->membership().members();
    device->notice([this, members = std::move(members)] {
      return std::ranges::all_of(members, [this](engine::Place place) { return network_.runs(place); });
    });
  }
  std::vector<std::unique_ptr<engine::Carrier>> made;
  made.push_back(std::move(device));
  if (at_switch != nullptr) made.push_back(std::move(at_switch));
  made.push_back(std::make_unique<carriers::PlanCarrier>(config, std::vector<std::unique_ptr<plan::Backend>>()));
  return made;
}

void ElasticJob::make_engine(RankState& rank, const std::vector<engine::Place>& peers, bool joins) {
  engine::EngineConfig config;
  config.rank = rank.place;
  config.epoch = joins ? 0 : 7;
  config.joins = joins;
  config.make_carriers = [this, &rank](const engine::CarrierConfig& carrier) { return make_carriers(rank, carrier); };
  const engine::Place places = std::max(rank.place, *std::ranges::max_element(peers)) + 1;
  config.links.resize(static_cast<std::size_t>(places));
  for (const engine::Place peer : peers) {
    if (peer != rank.place) config.links[static_cast<std::size_t>(peer)] = network_.link(rank.place, peer);
  }
  for (engine::Place peer = 0; peer < places; ++peer) {
    config.host_of.push_back(joins ? -1 : (options_.share_memory ? 0 : peer));  // whoever joins is told
  }
  config.readiness = &network_.readiness(rank.place);
  config.arena = network_.arena(rank.place);
  if (config.arena != nullptr) config.fusion_arena = network_.arena_memory(rank.place).data();
  config.has_witness = options_.witness;
  engine::EngineSettings settings;
  settings.execution.fusion_threshold_bytes = kFusionBytes / (joins && options_.joiners_differ ? 2 : 1);
  settings.execution.direct_bytes = 1024;
  settings.execution.survey_every = 3;
  settings.timeout = 20 * kSecond;
  settings.stall_warning = 0;
  settings.heartbeat = kHeartbeat;
  settings.elastic = true;
  if (options_.tree_degree > 0) {
    settings.direct_members = 1;
    settings.tree_degree = options_.tree_degree;
  }
  settings.elastic_timeout = 2 * kSecond;
  settings.standstill = kTick;
  settings.eager_limit_bytes = 512;
  rank.engine = std::make_unique<engine::Engine>(std::move(config), settings, network_.clock());
  rank.engine->fail_on_change(options_.goes_back);
  for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
    rank.inputs[tensor].resize(kElements[tensor]);
    rank.outputs[tensor].resize(kElements[tensor]);
  }
  if (network_.arena(rank.place) == nullptr) return;
  for (std::int64_t** const place : {&rank.registered, &rank.registered_input}) {
    *place =
        reinterpret_cast<std::int64_t*>(network_.arena(rank.place)->allocate(kElements.back() * sizeof(std::int64_t)));
  }
}

void ElasticJob::submit_one(RankState& rank, const std::string& name, Collective collective, ReduceOp op,
                            const std::int64_t* input, std::int64_t* output, std::size_t elements, bool awaited,
                            bool compressed, bool on_device) {
  auto operation = std::make_shared<engine::Operation>();
  operation->descriptor.name = name;
  operation->descriptor.collective = collective;
  operation->descriptor.dtype = compressed ? DType::kFloat64 : DType::kInt64;
  if (compressed) operation->descriptor.compression = options_.compression;
  operation->descriptor.op = op;
  operation->descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 1>{elements});
  operation->input = reinterpret_cast<const std::byte*>(input);
  operation->output = reinterpret_cast<std::byte*>(output);
  operation->awaited = awaited;
  if (on_device) {
    operation->descriptor.on_device = true;
    operation->on_device = std::make_unique<engine::OnDevice>();
    operation->on_device->device = 0;
    operation->on_device->input = operation->input;
    operation->on_device->output = operation->output;
  }
  rank.engine->submit(operation, !awaited);  // as programs do that submit one after the other
  rank.operations.push_back(std::move(operation));
}

std::int64_t* ElasticJob::output_of(RankState& rank, std::size_t tensor) const {
  const bool is_registered = tensor == kTensors - 1 && rank.registered != nullptr && !options_.on_device;
  return is_registered ? rank.registered : rank.outputs[tensor].data();
}

// Where the rank has put what it gives.
const std::int64_t* ElasticJob::place_input(RankState& rank, std::size_t tensor) {
  const std::vector<std::int64_t>& input = rank.inputs[tensor];
  std::int64_t* place = nullptr;
  if (is_in_place(rank, tensor)) {
    place = output_of(rank, tensor);
  } else if (output_of(rank, tensor) == rank.registered && options_.from_registered) {
    place = rank.registered_input;
  }
  if (place == nullptr) return input.data();
  std::ranges::copy(input, place);
  return place;
}

bool ElasticJob::is_in_place(const RankState& rank, std::size_t tensor) const {
  return tensor == 0 || (tensor == kTensors - 1 && options_.in_place && rank.registered != nullptr);
}

void ElasticJob::submit(RankState& rank) {
  switch (rank.phase) {
    case Phase::kStep:
      for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
        std::vector<std::int64_t>& input = rank.inputs[tensor];
        std::fill(input.begin(), input.end(), contribution(rank.place, rank.next));
        if (is_compressed(tensor)) fill_compressed(input, rank.place, rank.next);
        submit_one(rank, "gradient " + std::to_string(tensor), Collective::kAllreduce, ReduceOp::kSum,
                   place_input(rank, tensor), output_of(rank, tensor), input.size(), tensor != 1, is_compressed(tensor),
                   options_.on_device && tensor == kTensors - 1);
      }
      return;
    case Phase::kNews:
      rank.news = 0;
      for (const engine::Place place : rank.engine->arrivals()) rank.news += count_of(place);
      if (rank.wants_to_leave) rank.news += leaver_of(rank.place);
      return submit_one(rank, "news", Collective::kAllreduce, ReduceOp::kSum, &rank.news, &rank.all_news, 1, true);
    case Phase::kLeaving:
      return submit_one(rank, "leaving", Collective::kBarrier, ReduceOp::kSum, nullptr, nullptr, 0, true);
    case Phase::kParting:
      return submit_one(rank, "parting", Collective::kBarrier, ReduceOp::kSum, nullptr, nullptr, 0, true);
    case Phase::kJoining:
    case Phase::kLettingIn: return;
    case Phase::kAgreeing:
      return submit_one(rank, "step", Collective::kAllreduce, ReduceOp::kMin, &rank.next, &rank.agreed, 1, true);
    case Phase::kBarrier:
      return submit_one(rank, "end", Collective::kBarrier, ReduceOp::kSum, nullptr, nullptr, 0, true);
    case Phase::kEnded: return;
  }
}

// Every element of a tensor is the same sum.
void ElasticJob::take_sums(RankState& rank) {
  const auto step = static_cast<std::size_t>(rank.next);
  for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
    if (is_compressed(tensor)) {
      take_compressed(rank);
      continue;
    }
    const std::int64_t* const sum = output_of(rank, tensor);
    rank.sums[step][tensor] = sum[0];
    const auto differs = [sum](std::int64_t element) { return element != sum[0]; };
    if (std::any_of(sum, sum + kElements[tensor], differs)) {
      rank.flaw = "the elements of gradient " + std::to_string(tensor) + " of step " + std::to_string(step) + " differ";
    }
  }
  rank.epoch_of[step] = rank.of_epoch;
  ++rank.steps;
}

// What is nearly there is, what is nearly 0 is not: a sum is off by a few parts in 127.
void ElasticJob::take_compressed(RankState& rank) {
  const auto step = static_cast<std::size_t>(rank.next);
  const std::vector<std::int64_t>& sums = rank.compressed[step] = rank.outputs[1];
  const std::size_t share = sums.size() / kMostPlaces;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double part = std::bit_cast<double>(sums[i]) / static_cast<double>(2 * rank.next + 1);
    if (std::abs(part) > 0.1 && std::abs(part - 1) > 0.1) {
      rank.flaw = "element " + std::to_string(i) + " of step " + std::to_string(step) + " is no sum";
    }
    if (i % share == 0 && part > 0.5) sum += contribution(static_cast<engine::Place>(i / share), rank.next);
  }
  rank.sums[step][1] = sum;
}

void ElasticJob::end_phase(RankState& rank) {
  switch (rank.phase) {
    case Phase::kStep:
      if (rank.is_mixed) {
        ++rank.repeated;
        return;
      }
      take_sums(rank);
      rank.phase = Phase::kStep;
      if (options_.joiners > 0 || options_.may_leave) rank.phase = Phase::kNews;
      if (++rank.next == kSteps) rank.phase = Phase::kBarrier;
      return;
    case Phase::kNews: return take_news(rank);
    case Phase::kLeaving:
      if (engine::contains(rank.leaving, rank.place)) return leave_early(rank);
      rank.phase = Phase::kParting;
      [[fallthrough]];
    case Phase::kParting: return part(rank);
    case Phase::kJoining:
    case Phase::kLettingIn: return;
    case Phase::kAgreeing:
      rank.first = rank.place < options_.ranks || rank.steps > 0 ? rank.first : rank.agreed;
      rank.next = rank.agreed;
      rank.phase = rank.next == kSteps ? Phase::kBarrier : Phase::kStep;
      // Before a state is given to one that has come, callers let in all others that are ready.
      if (rank.phase == Phase::kStep && options_.joiners > 1) rank.phase = Phase::kNews;
      return;
    case Phase::kBarrier:
      rank.phase = Phase::kEnded;
      rank.ended_at = network_.clock().now();
      rank.engine->leave("");
      rank.has_left = true;
      return;
    case Phase::kEnded: return;
  }
}

void ElasticJob::take_news(RankState& rank) {
  const auto all = static_cast<std::int64_t>(rank.engine->members_of(rank.of_epoch).size());
  rank.phase = Phase::kStep;
  rank.leaving.clear();
  for (const RankState& other : ranks_) {
    if ((rank.all_news & leaver_of(other.place)) != 0) engine::insert(rank.leaving, other.place);
  }
  if (!rank.leaving.empty()) {
    rank.engine->fail_on_change(false);
    rank.phase = Phase::kLeaving;
  }
  for (const RankState& other : ranks_) {
    if (rank.phase != Phase::kStep || (rank.all_news / count_of(other.place)) % count_of(1) != all) continue;
    rank.phase = Phase::kLettingIn;
    rank.lets_in = other.place;
    rank.has_come = false;
    rank.engine->let_in(other.place);
  }
}

void ElasticJob::leave_early(RankState& rank) {
  rank.phase = Phase::kEnded;
  rank.end = rank.next;
  rank.has_left = true;
  const auto last = static_cast<Rank>(places_of(options_)) - 1;
  const Rank late = rank.place == last ? last - 1 : last;
  if (options_.late_goodbye > 0) network_.delay(rank.place, late, transport::kControlLane, options_.late_goodbye);
  rank.engine->leave("");
}

// What finds that somebody has left is done again by the others, as all of them are here or on their way.
void ElasticJob::part(RankState& rank) {
  const auto is_member = [&](engine::Place place) {
    return engine::contains(rank.engine->members_of(rank.of_epoch), place);
  };
  if (std::any_of(rank.leaving.begin(), rank.leaving.end(), is_member)) return;
  rank.engine->accept_change(rank.of_epoch);  // of what has changed since, this rank has yet to be told
  rank.engine->fail_on_change(options_.goes_back);
  rank.phase = Phase::kStep;
}

// What it waits for is no operation.
bool ElasticJob::advance_alone(RankState& rank) {
  if (rank.phase == Phase::kJoining) {
    if (events_ < rank.ready_at) return false;
    if (!rank.asked) {
      rank.asked = network_.clock().now();
      rank.engine->become_member();
    }
    if (network_.clock().now() - *rank.asked > kJoinPatience) {
      rank.engine->fail(std::make_shared<const Error>(ErrorKind::kTimeout, "was not let in"));
    }
    if (!rank.engine->has_joined()) return false;
    rank.has_joined = true;
    rank.next = kSteps;  // it has none that it would have to do again
    rank.phase = Phase::kAgreeing;
  } else {
    if (rank.engine->is_letting_in()) return false;
    rank.engine->let_in({});
    const engine::Membership& members = rank.engine->membership();
    // Of a loss alone others may have heard when they had gone on: this one is told of it like them, or not at all.
    if (rank.has_come) {
      rank.engine->accept_change(members.epoch());
      // As callers do while they give their state to who has come: any other rank may have more to do for that. The first
      // one does not, nor who has come, so that somebody notices who hangs.
      const Rank last = members.size() - 1;
      std::vector<Rank> others(static_cast<std::size_t>(members.size()));
      std::iota(others.begin(), others.end(), 0);
      std::erase(others, rank.engine->rank());
      if (rank.engine->rank() != 0 && rank.engine->rank() != last) rank.engine->excuse(std::move(others));
    }
    rank.phase = rank.has_come ? Phase::kAgreeing : Phase::kStep;
  }
  return true;
}

// Whether it is still at what it does in front of a step, or of the end.
bool ElasticJob::computes(RankState& rank) {
  const Nanoseconds lasts = options_.computes[static_cast<std::size_t>(rank.place)];
  const bool has_work = rank.phase == Phase::kStep || rank.phase == Phase::kBarrier;
  if (!has_work || !rank.operations.empty() || lasts == 0) return false;
  const Nanoseconds now = network_.clock().now();
  if (!rank.computes_until) rank.computes_until = now + lasts;
  if (now < *rank.computes_until) return true;
  rank.computes_until.reset();
  return false;
}

// True if the rank has done something; false while it waits.
bool ElasticJob::advance(RankState& rank) {
  if (rank.phase == Phase::kEnded || rank.engine->failure() != nullptr) return false;
  const bool is_alone = rank.phase == Phase::kJoining || rank.phase == Phase::kLettingIn;
  if (is_alone && !advance_alone(rank)) return false;
  const auto is_done = [](const auto& operation) { return operation->done(); };
  if (!std::all_of(rank.operations.begin(), rank.operations.end(), is_done)) return false;
  if (!rank.engine->settle_devices()) return false;
  const bool had_any = !rank.operations.empty();
  std::shared_ptr<const Error> error;
  std::set<std::uint32_t> epochs;
  for (const auto& operation : std::exchange(rank.operations, {})) {
    if (operation->error != nullptr) error = operation->error;
    if (operation->error == nullptr && rank.phase != Phase::kStep) ++rank.ended[operation->epoch];
    epochs.insert(operation->epoch);
  }
  rank.is_mixed = epochs.size() > 1;
  if (had_any) rank.of_epoch = *epochs.rbegin();
  try {
    if (error != nullptr) throw Error(*error);
    if (rank.engine->lost_results()) throw Error(*rank.engine->change());
    if (had_any) end_phase(rank);
    if (computes(rank)) return had_any;
    submit(rank);
  } catch (const Error& thrown) {
    if (thrown.kind() == ErrorKind::kEvicted) return false;
    if (thrown.kind() != ErrorKind::kMembershipChanged) rank.flaw = std::string("an error: ") + thrown.what();
    // What was submitted before it was refused fails, too, and holds on to its memory until then.
    const auto pending = [](const auto& operation) { return !operation->done(); };
    if (std::any_of(rank.operations.begin(), rank.operations.end(), pending)) return false;
    rank.operations.clear();
    ++rank.changes;
    const engine::Membership& members = rank.engine->membership();
    rank.engine->accept_change(members.epoch());
    rank.engine->fail_on_change(options_.goes_back);
    rank.phase = Phase::kAgreeing;
  }
  return true;
}

void ElasticJob::serve_witness() {
  for (RankState& rank : ranks_) {
    if (!is_there(rank)) continue;
    for (const auto& bytes : rank.engine->take_for_witness()) {
      if (!witness_) continue;
      const auto answer = witness_->receive(engine::decode_view_message(bytes));
      if (answer) rank.engine->hear_witness(engine::encode(*answer));
    }
  }
}

bool ElasticJob::progress(RankState& rank) {
  const bool moved = rank.engine->progress();
  const bool lets_in = rank.phase == Phase::kLettingIn;
  rank.has_come = rank.has_come || (lets_in && engine::contains(rank.engine->membership().members(), rank.lets_in));
  return moved;
}

void ElasticJob::drive() {
  for (bool moved = true; moved;) {
    moved = false;
    for (RankState& rank : ranks_) {
      if (is_there(rank)) rank.engine->links_changed();
      while (is_there(rank) && (progress(rank) || advance(rank) || network_.arm(rank.place))) moved = true;
    }
    serve_witness();
  }
}

// Ranks do nothing but wait, and say so all the time: it is never a deadlock, whenever the members change.
void ElasticJob::check_timers() {
  for (RankState& rank : ranks_) {
    if (!is_there(rank)) continue;
    std::vector<const engine::Operation*> waits;
    for (const auto& operation : rank.operations) {
      if (!operation->done()) waits.push_back(operation.get());
    }
    rank.engine->all_wait(waits);
    rank.engine->check_timers(true);
  }
}

bool ElasticJob::ended(const RankState& rank) const {
  if (!is_there(rank) || rank.engine->failure() != nullptr) return true;
  if (rank.phase != Phase::kEnded) return false;
  // An encrypted lane on which nothing comes never agrees on its keys: as in runtime.cpp, nobody waits for that for ever.
  return rank.engine->farewell_seen() || network_.clock().now() - rank.ended_at > kFarewellLimit;
}

std::string ElasticJob::run() {
  began_ = network_.clock().now();
  Nanoseconds timers_checked = began_;
  while (!std::all_of(ranks_.begin(), ranks_.end(), [this](const RankState& rank) { return ended(rank); })) {
    for (auto [fault, end] = faults_.equal_range(events_); fault != end; ++fault) fault->second(network_);
    for (auto [come, end] = joins_.equal_range(events_); come != end; ++come) join(come->second);
    for (auto [leave, end] = leaves_.equal_range(events_); leave != end; ++leave)
      ranks_[static_cast<std::size_t>(leave->second)].wants_to_leave = true;
    for (auto [give_up, end] = give_ups_.equal_range(events_); give_up != end; ++give_up)
      ranks_[static_cast<std::size_t>(give_up->second)].gives_up = true;
    if (events_ == witness_ends_at_ && witness_) {
      witness_.reset();
      for (RankState& rank : ranks_) {
        if (rank.engine != nullptr) rank.engine->lose_witness();
      }
    }
    ++events_;
    drive();
    if (network_.clock().now() - began_ > kDeadline) return "hang: not finished in time";
    const auto event = network_.next_event();
    if (event && *event < timers_checked + kTick) {
      network_.step();
      continue;
    }
    timers_checked += kTick;
    network_.run_until(timers_checked);
    check_timers();
  }
  return check();
}

}  // namespace ringcore::simulation
