#include "transport/shm/link.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "base/error.hpp"
#include "transport/process.hpp"
#include "transport/shm/arena_view.hpp"
#include "transport/shm/ring_buffer.hpp"
#include "transport/standing.hpp"

namespace ringcore::transport {
namespace {

// What the owner of an inbox sleeps for; 0 when it is awake. The sender clears it and rings, once.
enum Sleep : std::uint32_t { kAwake = 0, kForData = 1, kForRoom = 2 };

// The first page of an inbox. `rings` are those of the lanes in it.
struct InboxPage {
  std::array<RingIndices, kLaneCount> rings;
  alignas(128) std::uint32_t owner_sleeps;
  Standing owner;
};
static_assert(sizeof(InboxPage) <= 4096);  // the smallest page

Mapping map_page(const Segment& segment, Rank sender) {
  segment.reserve_inbox(sender);
  return segment.map_inbox_page(sender);
}

class ShmLink final : public Link {
 public:
  ShmLink(Rank self, Rank peer, const Segment& own, const std::shared_ptr<const Segment>& peers, Fd socket)
      : socket_(std::move(socket)),
        peer_(Process::at_other_end(socket_.get())),
        in_mapping_(map_page(own, peer)),
        out_mapping_(map_page(*peers, self)),
        in_page_(*reinterpret_cast<InboxPage*>(in_mapping_.data())),
        out_page_(*reinterpret_cast<InboxPage*>(out_mapping_.data())),
        arena_(peers) {
    const InboxLayout layout(own.size());
    for (int lane = 0; lane < kLaneCount; ++lane) {
      Lane& l = lanes_[static_cast<std::size_t>(lane)];
      const std::size_t offset = layout.lane_offset(lane);
      const std::size_t bytes = layout.lane_bytes(lane);
      const auto index = static_cast<std::size_t>(lane);
      l.in_memory = RingMapping(own.fd(), own.inbox_offset(peer) + offset, bytes);
      l.out_memory = RingMapping(peers->fd(), peers->inbox_offset(self) + offset, bytes);
      l.in = RingConsumer(in_page_.rings[index], l.in_memory.data(), bytes);
      l.out = RingProducer(out_page_.rings[index], l.out_memory.data(), bytes);
    }
  }

  std::size_t write(int lane, std::span<const std::byte> bytes) override {
    if (failure_) return 0;
    RingProducer& ring = ring_of(lane).out;
    const std::size_t taken = ring.write(bytes);
    if (ring.corrupt()) [[unlikely]]
      fail_corrupt(lane);
    wake_peer(kForData);
    return taken;
  }

  std::span<const std::byte> peek(int lane) override {
    RingConsumer& ring = ring_of(lane).in;
    const std::span<const std::byte> view = ring.peek();
    if (ring.corrupt()) [[unlikely]]
      fail_corrupt(lane);
    return view;
  }

  void consume(int lane, std::size_t bytes) override {
    ring_of(lane).in.consume(bytes);
    wake_peer(kForRoom);
  }

  std::size_t read(int lane, std::span<std::byte> out) override {
    RingConsumer& ring = ring_of(lane).in;
    const std::size_t taken = ring.read(out);
    if (ring.corrupt()) [[unlikely]]
      fail_corrupt(lane);
    if (taken > 0) wake_peer(kForRoom);
    return taken;
  }

  std::optional<std::string> failure() const override { return failure_; }

  void check() override {
    pollfd socket{socket_.get(), POLLRDHUP, 0};
    if (::poll(&socket, 1, 0) > 0) fail("closed the connection");
  }

  bool peer_wants_to_run() override { return peer_.wants_to_run(); }
  bool peer_has_ended() override { return peer_.has_ended(); }
  bool end_peer() override { return peer_.end(); }

  bool blocked() override {
    return std::any_of(lanes_.begin(), lanes_.end(), [](Lane& lane) { return lane.out.blocked(); });
  }

  bool arm() override {
    std::uint32_t sleep = kForData;
    for (Lane& lane : lanes_) {
      if (lane.out.blocked()) sleep |= kForRoom;
    }
    Flag(in_page_.owner_sleeps).store(sleep);
    // What the peer did before it could see the wish would ring no bell: look again.
    bool news = std::exchange(failed_just_now_, false);
    bool blocked = false;
    for (Lane& lane : lanes_) {
      news |= lane.in.arrived();
      blocked |= lane.out.blocked();
    }
    return news || ((sleep & kForRoom) != 0 && !blocked);
  }

  void disarm() override {
    Flag(in_page_.owner_sleeps).store(kAwake);
    std::array<std::byte, 64> bells;
    const ssize_t got = ::recv(socket_.get(), bells.data(), bells.size(), MSG_DONTWAIT);
    if (got == 0) fail("closed the connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR) fail(with_errno("lost the connection", errno));
  }

  void add_wait_fds(std::vector<pollfd>& fds) const override {
    if (!failure_) fds.push_back({socket_.get(), POLLIN | POLLRDHUP, 0});
  }

  Standing* own_standing() override { return &in_page_.owner; }
  const Standing* peer_standing() const override { return &out_page_.owner; }
  bool sees_memory() const override { return true; }
  std::byte* peer_memory(std::uint64_t offset, std::size_t bytes) override { return arena_.at(offset, bytes); }
  std::string_view transport() const override { return "shm"; }

 private:
  struct Lane {
    RingMapping in_memory;
    RingMapping out_memory;
    RingConsumer in;
    RingProducer out;
  };
  using Flag = std::atomic_ref<std::uint32_t>;

  Lane& ring_of(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  // Rings when the peer sleeps for `reason`. Called after publishing an index; both are sequentially consistent, as is
  // the peer's announcement before its last look, so one of the two sides always notices the other.
  void wake_peer(std::uint32_t reason) {
    Flag flag(out_page_.owner_sleeps);
    if ((flag.load() & reason) == 0) [[likely]]
      return;
    if (flag.exchange(kAwake) == kAwake) return;
    std::atomic_ref(in_page_.owner.rung_at).store(SteadyClock().now(), std::memory_order_relaxed);
    // A full socket buffer means that bells enough are in it; a closed one is noticed by check().
    const std::byte bell{1};
    [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void fail(std::string reason) {
    if (failure_) return;
    failure_ = std::move(reason);
    failed_just_now_ = true;
  }

  void fail_corrupt(int lane) {
    fail("wrote an impossible index into the shared ring of lane " + std::to_string(lane) + "; its memory is corrupt");
  }

  Fd socket_;
  Process peer_;
  Mapping in_mapping_;
  Mapping out_mapping_;
  InboxPage& in_page_;   // in this rank's segment: what the peer writes and this rank reads
  InboxPage& out_page_;  // in the peer's segment
  ArenaView arena_;      // the peer's
  std::array<Lane, kLaneCount> lanes_;
  std::optional<std::string> failure_;
  bool failed_just_now_ = false;
};

}  // namespace

std::unique_ptr<Link> make_shm_link(Rank self, Rank peer, const Segment& own,
                                    const std::shared_ptr<const Segment>& peers, Fd socket) {
  return std::make_unique<ShmLink>(self, peer, own, peers, std::move(socket));
}

}  // namespace ringcore::transport
