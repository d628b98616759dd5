#include "transport/sim/network.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "transport/sim/encryption.hpp"

namespace ringcore::transport {
namespace {

// A write is split into at most so many deliveries.
constexpr std::uint64_t kMostPieces = 3;
// One write in so many is accepted only partly though there is room, one view in so many is short.
constexpr std::uint64_t kShortWrites = 4;
constexpr std::uint64_t kShortViews = 2;
// How long a connection is tried for.
constexpr Nanoseconds kPatience = kSecond / 2;

}  // namespace

class SimLink final : public Link {
 public:
  SimLink(SimNetwork& network, Rank self, Rank peer) : network_(network), self_(self), peer_(peer) {}
  SimLink(const SimLink&) = delete;
  SimLink& operator=(const SimLink&) = delete;
  ~SimLink() override {
    if (secured_by_ != nullptr) network_.connection(self_, peer_).secured = nullptr;
  }

  // The link that encrypts what goes through this one.
  void secure(Link* by) { network_.connection(self_, peer_).secured = secured_by_ = by; }

  void want(int lane) override {
    network_.want(self_, peer_, kControlLane);
    network_.want(self_, peer_, lane);
  }
  bool has(int lane) const override { return network_.is_open(self_, peer_, lane); }

  std::size_t write(int lane, std::span<const std::byte> bytes) override {
    return network_.is_open(self_, peer_, lane) ? network_.write(self_, peer_, lane, bytes) : 0;
  }

  std::span<const std::byte> peek(int lane) override {
    if (!network_.is_open(self_, peer_, lane)) return {};
    SimNetwork::Stream& stream = incoming(lane);
    const std::size_t size = stream.arrived.size() - stream.consumed;
    const bool whole = lane == kControlLane || size <= 1 || network_.random_below(kShortViews) != 0;
    const std::size_t shown = whole ? size : 1 + network_.random_below(size);
    stream.seen = stream.consumed + shown;
    stream.unread = false;
    return {stream.arrived.data() + stream.consumed, shown};
  }

  bool is_watched() const override { return network_.options_.watched; }

  void consume(int lane, std::size_t bytes) override {
    SimNetwork::Stream& stream = incoming(lane);
    const bool was_full = stream.arrived.size() - stream.consumed + stream.in_flight >= network_.capacity(lane);
    stream.consumed += bytes;
    if (stream.consumed == stream.arrived.size()) {
      stream.arrived.clear();
      stream.consumed = stream.seen = 0;
    }
    if (was_full && bytes > 0) network_.tell_room(self_, peer_);
  }

  std::size_t read(int lane, std::span<std::byte> out) override {
    const std::span<const std::byte> view = peek(lane);
    if (view.empty()) return 0;
    const std::size_t taken = std::min(view.size(), out.size());
    std::copy_n(view.begin(), taken, out.begin());
    consume(lane, taken);
    return taken;
  }

  std::optional<std::string> failure() const override { return network_.connection(self_, peer_).failure; }
  bool last_words_may_come() const override {
    const SimNetwork::Connection& end = network_.connection(self_, peer_);
    return end.data_has_ended && end.lanes[kControlLane].in_flight > 0;
  }
  void check() override {}

  bool peer_wants_to_run() override {
    const Nanoseconds last_look = std::exchange(looked_at_, network_.clock_.now());
    return network_.starved_until_[static_cast<std::size_t>(peer_)] > last_look;
  }

  bool peer_has_ended() override { return sees_memory() && network_.dead_[static_cast<std::size_t>(peer_)]; }
  bool end_peer() override {
    if (sees_memory()) network_.kill(peer_);
    return sees_memory();
  }

  bool blocked() override {
    for (int lane = 0; lane < kLaneCount; ++lane) {
      const SimNetwork::Stream& stream = network_.connection(peer_, self_).lanes[lane];
      if (stream.arrived.size() - stream.consumed + stream.in_flight >= network_.capacity(lane)) return true;
    }
    return false;
  }

  bool arm() override {
    bool news = false;
    for (int lane = 0; lane < kLaneCount; ++lane) {
      SimNetwork::Stream& stream = incoming(lane);
      news |= std::exchange(stream.seen, stream.arrived.size()) != stream.arrived.size();
    }
    return news;
  }
  void disarm() override {}
  void add_wait_fds(std::vector<pollfd>&) const override {}

  bool sees_memory() const override {
    const std::vector<int>& host_of = network_.options_.host_of;
    return !host_of.empty() && host_of[static_cast<std::size_t>(self_)] == host_of[static_cast<std::size_t>(peer_)];
  }
  std::byte* peer_memory(std::uint64_t offset, std::size_t bytes) override {
    const std::span<std::byte> memory = network_.arena_memory(peer_);
    if (offset > memory.size() || bytes > memory.size() - offset) {
      throw Error(ErrorKind::kProtocol, "rank " + std::to_string(peer_) + " announced memory outside of its arena");
    }
    return memory.data() + offset;
  }

  std::optional<Nanoseconds> data_silence() const override {
    const std::optional<Nanoseconds> came = network_.connection(self_, peer_).data_came;
    return came ? std::optional(network_.clock_.now() - *came) : std::nullopt;
  }
  Pace pace() const override {
    const std::vector<Pace>& paces = network_.options_.paces;
    return paces.empty() ? Pace{} : paces[static_cast<std::size_t>(self_)];
  }
  std::string_view transport() const override { return "sim"; }

 private:
  SimNetwork::Stream& incoming(int lane) { return network_.connection(self_, peer_).lanes[lane]; }

  SimNetwork& network_;
  Rank self_;
  Rank peer_;
  Nanoseconds looked_at_ = 0;
  Link* secured_by_ = nullptr;
};

class SimReadiness final : public Readiness {
 public:
  SimReadiness(SimNetwork& network, Rank self) : network_(network), self_(self) {}

  void look() override {}
  bool has_news(Rank peer) const override { return network_.connection(self_, peer).lanes[kControlLane].unread; }
  void add_wait_fds(std::vector<pollfd>&) const override {}

 private:
  SimNetwork& network_;
  Rank self_;
};

SimNetwork::SimNetwork(int ranks, std::uint64_t seed, SimOptions options)
    : ranks_(ranks),
      options_(std::move(options)),
      generator_(seed),
      connections_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)),
      dead_(static_cast<std::size_t>(ranks)),
      rung_(static_cast<std::size_t>(ranks)),
      writes_left_(static_cast<std::size_t>(ranks)),
      paused_until_(static_cast<std::size_t>(ranks)),
      starved_until_(static_cast<std::size_t>(ranks)) {
  for (Rank rank = 0; rank < ranks; ++rank) readiness_.push_back(std::make_unique<SimReadiness>(*this, rank));
  for (Rank rank = 0; rank < ranks && !options_.host_of.empty(); ++rank) {
    segments_.push_back(std::make_unique<Segment>(Segment::create(rank, ranks, options_.arena_bytes)));
    arenas_.push_back(std::make_unique<Arena>(*segments_.back(), options_.reserved_bytes));
  }
}

std::unique_ptr<Link> SimNetwork::link(Rank from, Rank to) {
  auto link = std::make_unique<SimLink>(*this, from, to);
  if (!options_.encrypted || link->sees_memory()) return link;
  const auto secret =
      static_cast<std::uint64_t>(std::min(from, to)) << 32 | static_cast<std::uint64_t>(std::max(from, to));
  SimLink& inner = *link;
  std::unique_ptr<Link> made = make_toy_encrypted_link(std::move(link), from, to, secret);
  inner.secure(made.get());
  return made;
}

Arena* SimNetwork::arena(Rank rank) {
  return arenas_.empty() ? nullptr : arenas_[static_cast<std::size_t>(rank)].get();
}

std::span<std::byte> SimNetwork::arena_memory(Rank rank) {
  return segments_.empty() ? std::span<std::byte>() : segments_[static_cast<std::size_t>(rank)]->arena();
}

SimNetwork::Connection& SimNetwork::connection(Rank owner, Rank peer) {
  return connections_[static_cast<std::size_t>(owner) * static_cast<std::size_t>(ranks_) +
                      static_cast<std::size_t>(peer)];
}

const SimNetwork::Connection& SimNetwork::connection(Rank owner, Rank peer) const {
  return connections_[static_cast<std::size_t>(owner) * static_cast<std::size_t>(ranks_) +
                      static_cast<std::size_t>(peer)];
}

std::size_t SimNetwork::capacity(int lane) const {
  return lane == kControlLane ? std::max(options_.lane_bytes, 2 * Link::kMaxContiguous) : options_.lane_bytes;
}

Nanoseconds SimNetwork::random_delay() {
  const auto spread = static_cast<std::uint64_t>(options_.longest_delay - options_.shortest_delay);
  return options_.shortest_delay + static_cast<Nanoseconds>(random_below(spread + 1));
}

bool SimNetwork::is_open(Rank owner, Rank peer, int lane) const {
  const Connection& end = connection(owner, peer);
  const bool is_late = lane == kControlLane ? end.is_late : end.is_late || options_.late_lanes;
  return !is_late || end.open[static_cast<std::size_t>(lane)];
}

void SimNetwork::disconnect(Rank a, Rank b) { connection(a, b).is_late = connection(b, a).is_late = true; }

// Each end has the lane at a time of its own, after both have asked for it; the one for control after one of them has.
void SimNetwork::want(Rank owner, Rank peer, int lane) {
  const auto index = static_cast<std::size_t>(lane);
  Connection& mine = connection(owner, peer);
  if (is_open(owner, peer, lane) || std::exchange(mine.wanted[index], true)) return;
  if (lane == kControlLane && mine.refuses_lanes) return give_up_later(owner, peer);
  if ((lane != kControlLane && !connection(peer, owner).wanted[index]) || mine.refuses_lanes) return;
  for (const auto& [from, to] : {std::pair(owner, peer), std::pair(peer, owner)}) {
    schedule({.time = clock_.now() + random_delay() + random_delay(),
              .kind = EventKind::kLane,
              .from = from,
              .to = to,
              .lane = lane});
  }
}

std::size_t SimNetwork::write(Rank from, Rank to, int lane, std::span<const std::byte> bytes) {
  if (connection(from, to).failure || bytes.empty()) return 0;
  std::optional<std::uint64_t>& writes_left = writes_left_[static_cast<std::size_t>(from)];
  if (writes_left && (*writes_left)-- == 0) {
    writes_left.reset();
    kill(from);
  }
  if (dead_[static_cast<std::size_t>(from)]) return bytes.size();  // a ghost's
  const Stream& stream = connection(to, from).lanes[lane];
  const std::size_t used = stream.arrived.size() - stream.consumed + stream.in_flight;
  std::size_t taken = std::min(bytes.size(), capacity(lane) - std::min(used, capacity(lane)));
  if (options_.short_writes && taken > 1 && random_below(kShortWrites) == 0) {
    taken = 1 + random_below(taken);
    // The rest can be written at once, but who tries only after an event must get one.
    tell_room(to, from);
  }
  send(from, to, lane, bytes.first(taken));
  return taken;
}

// Puts accepted bytes on their way, in pieces.
void SimNetwork::send(Rank from, Rank to, int lane, std::span<const std::byte> bytes) {
  Stream& stream = connection(to, from).lanes[lane];
  if (options_.keep_history) stream.history.insert(stream.history.end(), bytes.begin(), bytes.end());
  stream.in_flight += bytes.size();
  if (dead_[static_cast<std::size_t>(to)] || connection(to, from).silent || connection(to, from).failure) return;
  for (std::uint64_t pieces = 1 + random_below(kMostPieces); !bytes.empty(); --pieces) {
    const std::size_t size = pieces > 1 ? 1 + random_below(bytes.size()) : bytes.size();
    stream.last_delivery = std::max(stream.last_delivery, clock_.now() + random_delay());
    schedule({.time = stream.last_delivery,
              .kind = EventKind::kDelivery,
              .from = from,
              .to = to,
              .lane = lane,
              .bytes = {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}});
    bytes = bytes.subspan(size);
  }
}

// Nothing but a reason to drive the ranks again.
void SimNetwork::tell_room(Rank reader, Rank writer) {
  schedule({.time = clock_.now() + random_delay(), .kind = EventKind::kRoom, .from = reader, .to = writer});
}

void SimNetwork::schedule(Event event) {
  event.sequence = next_sequence_++;
  events_.insert(std::move(event));
}

// Puts off what would happen to a paused rank, until the first event is one that may happen.
void SimNetwork::put_off_paused() {
  while (!events_.empty()) {
    const Event& first = *events_.begin();
    const Nanoseconds resumes = std::max(paused_until_[static_cast<std::size_t>(first.from)],
                                         paused_until_[static_cast<std::size_t>(first.to)]);
    if (first.time >= resumes) return;
    auto node = events_.extract(events_.begin());
    node.value().time = resumes;  // its sequence number keeps it in order among the others that waited
    events_.insert(std::move(node));
  }
}

std::optional<Nanoseconds> SimNetwork::next_event() {
  put_off_paused();
  if (events_.empty()) return std::nullopt;
  return std::max(events_.begin()->time, clock_.now());
}

bool SimNetwork::step() {
  const std::optional<Nanoseconds> time = next_event();
  if (!time) return false;
  clock_.set(*time);
  happen(std::move(events_.extract(events_.begin()).value()));
  return true;
}

void SimNetwork::run_until(Nanoseconds time) {
  while (const auto next = next_event()) {
    if (*next > time) break;
    step();
  }
  clock_.set(std::max(clock_.now(), time));
}

void SimNetwork::happen(Event event) {
  const auto mix = [this](std::uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001b3 + (digest_ >> 47); };
  mix(static_cast<std::uint64_t>(event.time));
  mix(static_cast<std::uint64_t>(event.from * ranks_ + event.to) * kLaneCount + static_cast<std::uint64_t>(event.lane));
  for (const std::byte b : event.bytes) mix(std::to_integer<std::uint64_t>(b));

  rung_[static_cast<std::size_t>(event.to)] = 1;
  Connection& owner = connection(event.to, event.from);
  switch (event.kind) {
    case EventKind::kDelivery: {
      if (owner.failure && !(owner.data_has_ended && event.lane == kControlLane)) return;
      Stream& stream = owner.lanes[event.lane];
      stream.in_flight -= event.bytes.size();
      if (!event.bytes.empty() && std::exchange(owner.tampered, false)) {
        event.bytes[random_below(event.bytes.size())] ^= static_cast<std::byte>(1U << random_below(8));
      }
      stream.arrived.insert(stream.arrived.end(), event.bytes.begin(), event.bytes.end());
      stream.unread = true;
      if (event.lane != kControlLane) owner.data_came = event.time;
      return;
    }
    case EventKind::kFailure:
      if (!owner.failure) owner.failure = std::move(event.reason);
      return;
    case EventKind::kRoom: return;
    case EventKind::kLane:
      if (event.lane == kControlLane && (dead_[static_cast<std::size_t>(event.from)] || owner.refuses_lanes)) {
        return give_up_later(event.to, event.from);
      }
      owner.open[static_cast<std::size_t>(event.lane)] = !owner.refuses_lanes;
      return;
  }
}

void SimNetwork::fail_later(Rank owner, Rank peer, const char* reason) {
  schedule({.time = clock_.now() + random_delay(),
            .kind = EventKind::kFailure,
            .from = peer,
            .to = owner,
            .reason = reason});
}

// Whoever dials in vain dials again for a while.
void SimNetwork::give_up_later(Rank owner, Rank peer) {
  schedule({.time = clock_.now() + kPatience,
            .kind = EventKind::kFailure,
            .from = peer,
            .to = owner,
            .reason = "could not be connected"});
}

bool SimNetwork::arm(Rank rank) {
  bool news = false;
  for (Rank peer = 0; peer < ranks_; ++peer) {
    Link* const secured = connection(rank, peer).secured;
    news = (secured != nullptr && secured->arm()) || news;
  }
  return news;
}

bool SimNetwork::runs(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return !dead_[index] && paused_until_[index] <= clock_.now();
}

bool SimNetwork::inject(Rank from, Rank to, int lane, std::span<const std::byte> bytes) {
  Link* const secured = connection(from, to).secured;
  if (secured != nullptr) return secured->write(lane, bytes) == bytes.size();
  send(from, to, lane, bytes);
  return true;
}

std::span<const std::byte> SimNetwork::history(Rank from, Rank to, int lane) const {
  return connection(to, from).lanes[lane].history;
}

}  // namespace ringcore::transport
