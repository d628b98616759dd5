#include "carriers/switch/clients.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <poll.h>

#include "base/error.hpp"
#include "base/rank_list.hpp"
#include "plan/backend.hpp"

namespace ringcore::carriers {
namespace {

using aggregation::Packet;
using aggregation::Segment;
using aggregation::Worker;

constexpr std::size_t kSentAtOnce = 64;  // packets
constexpr Nanoseconds kShortestNap = 200'000;
// A last word may be lost; the switch forgets by itself what is silent.
constexpr int kFarewells = 2;

Nanoseconds now() { return SteadyClock().now(); }

}  // namespace

SwitchClient::SwitchClient(const SwitchSettings& settings, Rank rank, int ranks, int lane)
    : settings_(settings),
      rank_(rank),
      ranks_(ranks),
      key_(aggregation::key_of_session(settings.key, settings.session + static_cast<std::uint64_t>(lane))),
      session_(settings.session + static_cast<std::uint64_t>(lane)),
      socket_(aggregation::Socket::connected_to(aggregation::resolve(settings.host, settings.port))),
      worker_({.session = session_,
               .key = key_,
               .member = static_cast<aggregation::MemberId>(rank),
               .ranks = static_cast<std::uint32_t>(ranks),
               .silence = settings.silence,
               .to = aggregation::resolve(settings.host, settings.port)},
              *this) {}

SwitchClient::~SwitchClient() {
  out_.clear();
  sent_ = 0;
  for (int i = 0; i < kFarewells && !stopped_; ++i) {
    if (i == 0) worker_.leave(out_);
    sent_ = 0;
    send();
  }
}

void SwitchClient::begin(std::span<float> data) {
  if (stopped_) throw Error(ErrorKind::kShutdown, title() + " was given up with an operation that has failed");
  if (tensor_) next_ = tensor_->end();
  tensor_.emplace(data, next_, settings_.integers, static_cast<std::uint32_t>(ranks_));
  worker_.join(now());
}

bool SwitchClient::take(Segment segment, const Contribution& sum) {
  ++moved_;
  return tensor_->take(segment, sum);
}

void SwitchClient::stop() {
  stopped_ = true;
  tensor_.reset();
  out_.clear();
  sent_ = 0;
  worker_.halt(out_);
  send();
}

bool SwitchClient::progress() {
  const bool moved = move();
  if (const auto& failure = worker_.failure(); failure && !done() && !goes_on_without_others()) fail(*failure);
  return moved;
}

void SwitchClient::look_after() {
  if (!stopped_) move();
}

bool SwitchClient::move() {
  const std::uint64_t before = moved_ + worker_.counts().sent;
  // What has been taken from the socket is answered before more is: else that would wait in our memory.
  for (bool more = true; more;) {
    const Nanoseconds at = now();
    more = socket_.receive([&](std::span<const std::byte> bytes, const aggregation::Address&) {
      const std::optional<Packet> packet = aggregation::parse(bytes);
      if (!packet || packet->header.session != session_ || !aggregation::is_authentic(*packet, key_)) return;
      worker_.receive(*packet, at);
    }) == aggregation::Socket::kAtOnce;
    if (sent_ == out_.items().size()) worker_.send(out_, at, kSentAtOnce);
    send();
  }
  return moved_ + worker_.counts().sent != before;
}

void SwitchClient::send() {
  sent_ = socket_.send(out_, sent_);
  if (sent_ < out_.items().size()) return;
  out_.clear();
  sent_ = 0;
}

void SwitchClient::add_wait_fds(std::vector<pollfd>& fds) const {
  const bool full = sent_ < out_.items().size();
  if (!stopped_) {
    fds.push_back({.fd = socket_.fd(), .events = static_cast<short>(POLLIN | (full ? POLLOUT : 0)), .revents = 0});
  }
}

Nanoseconds SwitchClient::longest_nap() const {
  if (stopped_) return kSecond;
  return std::clamp(worker_.next_timer() - now(), kShortestNap, kSecond);
}

// Somebody has left the session, who it is shows on the links, and the sum is made in the next epoch.
bool SwitchClient::goes_on_without_others() const {
  const auto& failure = worker_.failure();
  return settings_.elastic && failure && failure->kind == Worker::Failure::Kind::kIncomplete;
}

// A rank that has left may have sent all it had: only the switch knows who has not.
bool SwitchClient::waits_for(Rank rank) const {
  const auto& missing = worker_.missing();
  const auto member = static_cast<aggregation::MemberId>(rank);
  return !done() && (goes_on_without_others() || worker_.halted_by() == member ||
                     std::ranges::find(missing, member) != missing.end());
}

std::string SwitchClient::title() const {
  return "the switch " + settings_.host + ":" + std::to_string(settings_.port) + " (RINGCORE_SWITCH)";
}

std::string SwitchClient::waiting_for() const {
  std::string text = title();
  if (!worker_.has_joined()) return text + ", which not all ranks have joined";
  if (const auto by = worker_.halted_by()) return text + ", which rank " + std::to_string(*by) + " has suspended";
  if (worker_.missing().empty()) return text + " to send segment " + std::to_string(worker_.base());
  text += ", which lacks what is sent by rank";
  for (const auto member : worker_.missing()) text += " " + std::to_string(member);
  return text;
}

// The ranks can, where they can agree on what to make again.
void SwitchClient::do_without(ErrorKind kind, const std::string& what, const std::string& remedy) const {
  if (settings_.elastic) {
    throw plan::BackendLost(kind, title() + what +
                                      ". The ranks give it up, and send to each other from now on. Remedy: " + remedy +
                                      ", and start the job again where it is to be used");
  }
  throw Error(kind, title() + what + ". Remedy: " + remedy +
                        ", or leave out RINGCORE_SWITCH: the ranks then send to each other, as those of an elastic job "
                        "do from then on");
}

void SwitchClient::fail(const Worker::Failure& failure) const {
  using Kind = Worker::Failure::Kind;
  const std::string rank = "rank " + std::to_string(rank_);
  switch (failure.kind) {
    case Kind::kSilent:
      do_without(ErrorKind::kPeerLost, " has not answered " + rank + " for " + in_seconds(settings_.silence),
                 "see that ringcore-switch runs there, reaches this host over UDP and has the same key "
                 "(RINGCORE_SWITCH_KEY_FILE)");
    case Kind::kNoParent:
      do_without(ErrorKind::kPeerLost, " tells " + rank + " that the next switch above it does not answer",
                 "see that the one its --parent names runs");
    case Kind::kFull:
      do_without(
          ErrorKind::kResource,
          " has no room for " + rank + ": too many jobs use it, or more than 64 ranks or the --members it was told",
          "name another switch");
    case Kind::kMismatch:
      throw Error(ErrorKind::kProtocol,
                  title() + " says that segment " + std::to_string(failure.segment) + " of " + rank +
                      " does not fit those of other ranks. Remedy: give all ranks the same RINGCORE_SWITCH_SUMS and "
                      "the same version of ringcore, or leave out RINGCORE_SWITCH");
    case Kind::kTooOld:
      throw Error(ErrorKind::kProtocol, title() + " has given up the sum of segment " +
                                            std::to_string(failure.segment) + ", which " + rank + " lacks");
    case Kind::kIncomplete:
      throw Error(ErrorKind::kPeerLost,
                  title() + " has summed segment " + std::to_string(failure.segment) + " of " +
                      std::to_string(failure.contributions) + " of " + std::to_string(ranks_) +
                      " ranks: others have left it, or it was told so. Remedy: see that its --members is the number "
                      "of those that join it, or leave out RINGCORE_SWITCH");
  }
  __builtin_unreachable();
}

SwitchClient& SwitchClients::of(int lane) {
  std::unique_ptr<SwitchClient>& client = clients_.at(static_cast<std::size_t>(lane));
  if (client == nullptr) client = std::make_unique<SwitchClient>(settings_, rank_, ranks_, lane);
  return *client;
}

void SwitchClients::look_after() {
  for (const auto& client : clients_) {
    if (client != nullptr) client->look_after();
  }
}

void SwitchClients::add_wait_fds(std::vector<pollfd>& fds) const {
  for (const auto& client : clients_) {
    if (client != nullptr) client->add_wait_fds(fds);
  }
}

Nanoseconds SwitchClients::longest_nap() const {
  Nanoseconds nap = kSecond;
  for (const auto& client : clients_) {
    if (client != nullptr) nap = std::min(nap, client->longest_nap());
  }
  return nap;
}

std::shared_ptr<SwitchClients> SwitchEpochs::begin(std::uint32_t epoch, Rank rank, int ranks) {
  SwitchSettings settings = settings_;
  settings.session += std::uint64_t{epoch} * transport::kLaneCount;
  auto clients = std::make_shared<SwitchClients>(std::move(settings), rank, ranks);
  present_ = clients;
  return clients;
}

void SwitchEpochs::look_after() {
  if (const auto clients = present_.lock()) clients->look_after();
}

void SwitchEpochs::add_wait_fds(std::vector<pollfd>& fds) const {
  if (const auto clients = present_.lock()) clients->add_wait_fds(fds);
}

Nanoseconds SwitchEpochs::longest_nap() const {
  const auto clients = present_.lock();
  return clients == nullptr ? kSecond : clients->longest_nap();
}

}  // namespace ringcore::carriers
