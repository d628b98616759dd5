// A lane is a stream of messages with the lane's number as their tag. Sending copies into slots; receives into slots are
// posted ahead, so that bytes arrive where `peek` shows them.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "transport/mpi/world.hpp"

namespace ringcore::transport {
namespace {

constexpr std::size_t kControlBytes = Link::kMaxContiguous;
constexpr std::size_t kDataBytes = 128 * 1024;  // a multiple of every element, so that none is cut
// What most MPIs send without asking the receiver first; two of these are quicker than one larger message.
constexpr std::size_t kEagerBytes = 4000;
constexpr std::size_t kMostInPieces = 8 * 1024;
constexpr std::size_t kSendSlots = 8;
constexpr std::size_t kControlReceives = 2;
constexpr std::size_t kDataReceives = 4;
// How long a link that is closed waits until its last messages are on their way: the receiver may compute just then.
constexpr Nanoseconds kFlushLimit = 5 * kSecond;

class MpiLink final : public Link {
 public:
  MpiLink(std::shared_ptr<MpiWorld> world, Rank peer)
      : world_(std::move(world)), library_(world_->library()), comm_(world_->comm(kControlLane)), peer_(peer) {
    peek(kControlLane);
  }

  ~MpiLink() override {
    const SteadyClock clock;
    const Nanoseconds deadline = clock.now() + kFlushLimit;
    const auto waits = [&] { return !failure_ && !MpiWorld::abandoned() && clock.now() < deadline; };
    // First, because they write to memory that is not ours, as soon as MPI is called.
    for (PendingMessage& message : messages_) {
      if (!message.pending) continue;
      world_->end_work();
      if (message.incoming) guard([&] { library_.cancel(message.request); });
    }
    while (waits() && (sending() || under_way(false))) {
    }
    for (Lane& lane : *lanes_) {
      for (Slot& slot : lane.incoming) {
        if (slot.pending) guard([&] { library_.cancel(slot.request); });
      }
    }
    while (waits() && (receiving() || under_way(true))) {
    }
    if (!failure_ && !sending() && !receiving() && !under_way(false) && !under_way(true)) return;
    // MPI may still write or read the slots, so they stay; the memory of messages is its owner's.
    MpiWorld::abandon();
    [[maybe_unused]] const auto* leaked = lanes_.release();
  }

  using Link::write;
  std::size_t write(int lane, std::span<const std::byte> bytes) override { return write(lane, bytes, {}); }

  std::size_t write(int lane, std::span<const std::byte> first, std::span<const std::byte> rest) override {
    const std::size_t whole = first.size() + rest.size();
    const bool in_pieces = lane == kControlLane && whole > kEagerBytes && whole <= kMostInPieces;
    const std::size_t message_bytes = in_pieces ? kEagerBytes : slot_bytes(lane);
    std::size_t written = 0;
    while (written < whole) {
      const std::size_t of_first = std::min(first.size(), message_bytes);
      const std::size_t of_rest = std::min(rest.size(), message_bytes - of_first);
      if (!write_message(lane, first.first(of_first), rest.first(of_rest))) break;
      first = first.subspan(of_first);
      rest = rest.subspan(of_rest);
      written += of_first + of_rest;
    }
    return written;
  }

  std::span<const std::byte> peek(int lane) override {
    Lane& l = lane_of(lane);
    if (l.incoming.empty()) post(l, lane);
    if (l.joined_begin < l.joined.size()) {
      if (std::exchange(l.shown, true) && has_next(l, lane, 0)) join(l);
      return std::span<const std::byte>(l.joined).subspan(l.joined_begin);
    }
    if (!has_next(l, lane, 0)) return {};
    // Whoever looks again without having taken anything needs more than one message.
    if (std::exchange(l.shown, true) && has_next(l, lane, 1)) {
      join(l);
      join(l);
      return l.joined;
    }
    return rest_of_front(l);
  }

  void consume(int lane, std::size_t bytes) override {
    Lane& l = lane_of(lane);
    if (bytes > 0) l.shown = false;
    if (l.joined_begin < l.joined.size()) {
      l.joined_begin += bytes;
      if (l.joined_begin < l.joined.size()) return;
      l.joined.clear();
      l.joined_begin = 0;
      return;
    }
    l.front_begin += bytes;
    if (bytes > 0 && l.front_begin == l.incoming[l.front].bytes) next_front(l);
  }

  std::size_t read(int lane, std::span<std::byte> out) override {
    std::size_t taken = 0;
    while (taken < out.size()) {
      const std::span<const std::byte> view = peek(lane);
      if (view.empty()) break;
      const std::size_t bytes = std::min(view.size(), out.size() - taken);
      std::memcpy(out.data() + taken, view.data(), bytes);
      consume(lane, bytes);
      taken += bytes;
    }
    return taken;
  }

  bool has_messages() const override { return true; }

  Message send_message(int lane, int channel, std::span<const std::byte> bytes) override {
    return start(false, [&] { return library_.send(world_->comm(lane), peer_, channel, bytes, false); });
  }

  Message receive_message(int lane, int channel, std::span<std::byte> room) override {
    return start(true, [&] { return library_.receive(world_->comm(lane), peer_, channel, room); });
  }

  bool message_done(Message message) override {
    if (!is_done(messages_[message])) return false;
    free_messages_.push_back(message);
    world_->end_work();
    return true;
  }

  std::optional<std::string> failure() const override { return failure_; }
  // MPI does not tell who is still there; the heartbeat does. Keeps what is being sent moving.
  void check() override { sending(); }

  bool blocked() override {
    return std::any_of(lanes_->begin(), lanes_->end(), [this](Lane& l) {
      if (l.full && arrived(l.outgoing[l.next_out])) l.full = false;
      return l.full;
    });
  }

  bool arm() override {
    bool news = std::exchange(failed_just_now_, false);
    for (int lane = 0; lane < kLaneCount; ++lane) {
      Lane& l = lane_of(lane);
      if (!l.incoming.empty()) catch_up(l, lane);
      // Once: what nobody takes must not keep the caller awake.
      const bool more = !l.incoming.empty() && has_arrived(l, 0) && !std::exchange(l.noticed, true);
      const bool room = l.full && arrived(l.outgoing[l.next_out]);
      if (room) l.full = false;
      news = news || more || room;
    }
    sending();
    return news;
  }

  void disarm() override {}
  void add_wait_fds(std::vector<pollfd>&) const override {}
  Nanoseconds longest_nap(bool busy) override { return busy || sending() ? world_->nap() : Link::longest_nap(busy); }
  std::string_view transport() const override { return "mpi"; }

 private:
  struct Slot {
    std::vector<std::byte> memory;
    MpiRequest request = 0;
    bool pending = false;
    std::size_t bytes = 0;  // that have arrived
  };
  struct Lane {
    std::vector<Slot> outgoing;  // empty until the first write
    std::size_t next_out = 0;
    bool full = false;  // the last write found no free slot
    std::vector<Slot> incoming;  // empty until somebody looks
    std::size_t front = 0;
    std::size_t unposted = 0;  // slots before the front that no receive has been posted for again
    std::size_t front_begin = 0;  // bytes of the front message that were consumed
    std::vector<std::byte> joined;  // messages that were put together because one of them was not enough
    std::size_t joined_begin = 0;
    bool shown = false;  // `peek` has returned something, and nothing of it was consumed
    bool noticed = false;  // `arm` has told of the front message
  };

  Lane& lane_of(int lane) { return (*lanes_)[static_cast<std::size_t>(lane)]; }
  static std::size_t slot_bytes(int lane) { return lane == kControlLane ? kControlBytes : kDataBytes; }

  // False when the lane is full.
  bool write_message(int lane, std::span<const std::byte> first, std::span<const std::byte> rest) {
    if (failure_) return false;
    Lane& l = lane_of(lane);
    if (l.outgoing.empty()) l.outgoing.resize(kSendSlots);
    Slot& slot = l.outgoing[l.next_out];
    l.full = slot.pending && !arrived(slot);
    if (l.full) return false;
    slot.memory.assign(first.begin(), first.end());
    slot.memory.insert(slot.memory.end(), rest.begin(), rest.end());
    // One of them waits for the receiver, so that it is not buried in messages. Not of control records: those are always
    // looked at, and the last ones, to a rank that has left, would be waited for in vain.
    const bool synchronous = lane != kControlLane && l.next_out == kSendSlots - 1;
    guard([&] {
      slot.request = library_.send(comm_, peer_, lane, slot.memory, synchronous);
      slot.pending = true;
    });
    if (failure_) return false;
    l.next_out = (l.next_out + 1) % kSendSlots;
    world_->active();
    return true;
  }

  struct PendingMessage {
    MpiRequest request = 0;
    bool incoming = false;
    bool pending = false;
  };

  template <class Call>
  Message start(bool incoming, Call call) {
    if (free_messages_.empty()) {
      free_messages_.push_back(messages_.size());
      messages_.emplace_back();
    }
    const Message message = free_messages_.back();
    free_messages_.pop_back();
    world_->begin_work();
    messages_[message] = {.request = 0, .incoming = incoming, .pending = true};
    guard([&] { messages_[message].request = call(); });
    return message;
  }

  // Never, once the link has failed.
  bool is_done(PendingMessage& message) {
    guard([&] { message.pending = message.pending && !library_.test(message.request); });
    return !failure_ && !message.pending;
  }

  // Whether messages of one direction are still with MPI.
  bool under_way(bool incoming) {
    bool any = false;
    for (PendingMessage& message : messages_) any = (message.incoming == incoming && !is_done(message)) || any;
    return any;
  }

  template <class Call>
  void guard(Call call) {
    if (failure_) return;
    try {
      call();
    } catch (const std::runtime_error& error) {
      failure_ = std::string("cannot be reached over MPI: ") + error.what();
      failed_just_now_ = true;
      MpiWorld::abandon();
    }
  }

  bool arrived(Slot& slot) {
    if (!slot.pending) return true;
    guard([&] {
      const auto bytes = library_.test(slot.request);
      if (!bytes) return;
      slot.pending = false;
      slot.bytes = *bytes;
      world_->active();
    });
    return !slot.pending;
  }

  void receive(Slot& slot, int lane) {
    slot.bytes = 0;
    guard([&] {
      slot.request = library_.receive(comm_, peer_, lane, slot.memory);
      slot.pending = true;
    });
  }

  void post(Lane& l, int lane) {
    l.incoming.resize(lane == kControlLane ? kControlReceives : kDataReceives);
    for (Slot& slot : l.incoming) {
      slot.memory.resize(slot_bytes(lane));
      receive(slot, lane);
    }
  }

  // What is put off until nothing arrives, so that it is not in the way of what does.
  void catch_up(Lane& l, int lane) {
    for (; l.unposted > 0; --l.unposted) {
      receive(l.incoming[(l.front + l.incoming.size() - l.unposted) % l.incoming.size()], lane);
    }
    for (Slot& slot : l.outgoing) arrived(slot);
  }

  bool has_arrived(Lane& l, std::size_t ahead) {
    if (ahead + l.unposted >= l.incoming.size()) return false;
    Slot& slot = l.incoming[(l.front + ahead) % l.incoming.size()];
    return arrived(slot) && slot.bytes > 0;
  }
  // For who can go on only with that message: without it there is time for what was put off.
  bool has_next(Lane& l, int lane, std::size_t ahead) {
    if (has_arrived(l, ahead)) return true;
    catch_up(l, lane);
    return false;
  }

  std::span<const std::byte> rest_of_front(const Lane& l) const {
    const Slot& slot = l.incoming[l.front];
    return std::span(slot.memory).first(slot.bytes).subspan(l.front_begin);
  }

  void next_front(Lane& l) {
    ++l.unposted;
    l.front = (l.front + 1) % l.incoming.size();
    l.front_begin = 0;
    l.noticed = false;
  }

  void join(Lane& l) {
    l.joined.erase(l.joined.begin(), l.joined.begin() + static_cast<std::ptrdiff_t>(std::exchange(l.joined_begin, 0)));
    const std::span<const std::byte> rest = rest_of_front(l);
    l.joined.insert(l.joined.end(), rest.begin(), rest.end());
    next_front(l);
  }

  // Whether messages are still on their way.
  bool sending() {
    bool any = false;
    for (Lane& l : *lanes_) {
      for (Slot& slot : l.outgoing) any = !arrived(slot) || any;
    }
    return any;
  }

  bool receiving() {
    bool any = false;
    for (Lane& l : *lanes_) {
      for (Slot& slot : l.incoming) any = !arrived(slot) || any;
    }
    return any;
  }

  std::shared_ptr<MpiWorld> world_;
  MpiLibrary& library_;
  MpiComm comm_;
  Rank peer_;
  std::unique_ptr<std::array<Lane, kLaneCount>> lanes_ = std::make_unique<std::array<Lane, kLaneCount>>();
  std::vector<PendingMessage> messages_;  // from memory to memory
  std::vector<Message> free_messages_;
  std::optional<std::string> failure_;
  bool failed_just_now_ = false;
};

}  // namespace

std::unique_ptr<Link> make_mpi_link(std::shared_ptr<MpiWorld> world, Rank peer) {
  return std::make_unique<MpiLink>(std::move(world), peer);
}

}  // namespace ringcore::transport
