// A link carries bytes between this rank and one peer.
//
// It has a fixed number of lanes; each lane is an ordered, lossless stream of bytes in each direction. Lane 0 carries
// control records, the others carry the data of plans. A link never blocks and never starts a thread; whoever drives
// the engine decides how to wait. All calls come from one thread at a time.
//
// To add a transport, implement this class in one file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/types.hpp"
#include "transport/lane_use.hpp"
#include "transport/pace.hpp"

struct pollfd;

namespace ringcore::transport {

struct Standing;

inline constexpr int kControlLane = 0;
inline constexpr int kFirstDataLane = 1;
// Control, two for bulk data, of which one has what may wait too, one for urgent data.
inline constexpr int kLaneCount = 4;

class Link {
 public:
  virtual ~Link() = default;

  // The caller is about to use a lane; of data, so is its peer. A link may open one when this is first said, and the one
  // for control along with any other; until a lane is there it takes and gives nothing.
  virtual void want([[maybe_unused]] int lane) {}
  // Whether the lane is there.
  virtual bool has([[maybe_unused]] int lane) const { return true; }

  // Starts sending from the front of `bytes` and returns how many bytes were taken: 0 when the lane is full.
  virtual std::size_t write(int lane, std::span<const std::byte> bytes) = 0;
  // The same with two pieces, one behind the other.
  virtual std::size_t write(int lane, std::span<const std::byte> first, std::span<const std::byte> rest) {
    if (first.empty()) return write(lane, rest);
    const std::size_t taken = write(lane, first);
    return taken < first.size() || rest.empty() ? taken : taken + write(lane, rest);
  }

  // Bytes that have arrived, contiguous, without copying them; empty when there are none. Not necessarily all of them:
  // consume some and call again. On lane 0 the view holds a whole record once that has arrived, if it is at most
  // kMaxContiguous bytes long. The view is valid until the next call on this lane.
  static constexpr std::size_t kMaxContiguous = 68 * 1024;
  virtual std::span<const std::byte> peek(int lane) = 0;
  virtual void consume(int lane, std::size_t bytes) = 0;

  // Whether it is seen without a call of `peek` when something comes on lane 0: Readiness::look tells of it.
  virtual bool is_watched() const { return false; }

  // Moves arrived bytes to `out` and returns how many: 0 when nothing has arrived. May skip the copy that `peek` needs.
  virtual std::size_t read(int lane, std::span<std::byte> out) = 0;

  // The caller waits for so many bytes on the lane, which are sure to come: a sleeper need not be woken for fewer. Holds
  // until some are taken.
  virtual void expect([[maybe_unused]] int lane, [[maybe_unused]] std::size_t bytes) {}

  // Where a link also carries messages from memory to memory, past the streams. The n-th one that is sent on a lane and a
  // channel meets the n-th one that the peer receives there, which must be as large; no channel waits for another. The
  // memory stays until the message is done, or for ever when the link fails before that.
  virtual bool has_messages() const { return false; }
  using Message = std::size_t;
  static constexpr int kMessageChannels = 1 << 14;
  virtual Message send_message([[maybe_unused]] int lane, [[maybe_unused]] int channel,
                               [[maybe_unused]] std::span<const std::byte> bytes) {
    return 0;
  }
  virtual Message receive_message([[maybe_unused]] int lane, [[maybe_unused]] int channel,
                                  [[maybe_unused]] std::span<std::byte> room) {
    return 0;
  }
  // Says so once; then the number is free.
  virtual bool message_done([[maybe_unused]] Message message) { return true; }

  // Why the link can no longer be used, once that is known ("closed the connection", "reset the connection", ...).
  // A failed link takes and gives no more new bytes, but bytes that arrived before the failure can still be read.
  virtual std::optional<std::string> failure() const = 0;

  // Whether a failed link has given all that arrived and will arrive. A peer that closes in good order leaves bytes behind
  // that are still on their way: over several connections the end of one says nothing about the others.
  virtual bool ended() const { return failure().has_value(); }

  // Whether what a peer has said last on lane 0 may still be on its way, though the link has failed as the peer has closed
  // it: as above.
  virtual bool last_words_may_come() const { return false; }

  // Looks, with a system call, whether the peer is still connected. Called about once a millisecond while waiting.
  virtual void check() = 0;

  // What this host knows of the peer's process, where it is one of this host: whether it wants to run, or has run since this
  // was last asked. Of a peer that is silent: then it lacks a processor, and is not lost.
  virtual bool peer_wants_to_run() { return false; }

  // Where the peer is a process of this host: whether that has been seen to end. And ends it, even if it is stopped, so
  // that it writes nothing into memory that both see any more; false where that cannot be done.
  virtual bool peer_has_ended() { return false; }
  virtual bool end_peer() { return false; }

  // Whether a write came short and there has been no room since.
  virtual bool blocked() = 0;
  // Whether bytes that were taken are still kept in this process, and would be lost if it let go of the link.
  virtual bool holds_unsent() const { return false; }

  // Before the caller sleeps: asks the peer to ring when it writes. Returns true when something has arrived already
  // (then do not sleep). `disarm` takes the wish back and drains the bell.
  virtual bool arm() = 0;
  virtual void disarm() = 0;
  // Adds the descriptors to sleep on: readable when something arrived, writable when a full lane has room again.
  virtual void add_wait_fds(std::vector<pollfd>& fds) const = 0;
  // How long the caller may sleep before it looks again, where nothing of this wakes it; 0: it should stay awake.
  // `busy`: it waits for something.
  virtual Nanoseconds longest_nap([[maybe_unused]] bool busy) { return kSecond; }

  // Between ranks of a host: what this one says of its processors, and what the peer says; null elsewhere. They live as
  // long as the link.
  virtual Standing* own_standing() { return nullptr; }
  virtual const Standing* peer_standing() const { return nullptr; }

  // Whether this rank sees the peer's registered memory.
  virtual bool sees_memory() const { return false; }
  // So many bytes of it, where it does. The address stays valid as long as the link. Throws Error{kProtocol} for what lies
  // outside of it, Error{kResource} where it cannot be mapped.
  virtual std::byte* peer_memory([[maybe_unused]] std::uint64_t offset, [[maybe_unused]] std::size_t bytes) {
    return nullptr;
  }

  // For how long no data has come from the peer, where the kernel knows; asks it.
  virtual std::optional<Nanoseconds> data_silence() const { return std::nullopt; }

  // What the transfers so far have shown, where a network lies between; asks the kernel.
  virtual Pace pace() const { return {}; }

  // "shm", "tcp", "tls" (TCP, encrypted), "mpi", "sim".
  virtual std::string_view transport() const = 0;

  // What has been moved through a lane, and what is in the middle of it.
  LaneUse& lane_use(int lane) {
    if (lane_use_ == nullptr) lane_use_ = std::make_unique<std::array<LaneUse, kLaneCount>>();
    return (*lane_use_)[static_cast<std::size_t>(lane)];
  }

  // Bytes of data that plans have moved to the peer and from it, those that were fetched from its memory among them.
  struct Traffic {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };
  Traffic& traffic() { return traffic_; }

 private:
  std::unique_ptr<std::array<LaneUse, kLaneCount>> lane_use_;  // most links of a large job carry no data
  Traffic traffic_;
};

}  // namespace ringcore::transport
