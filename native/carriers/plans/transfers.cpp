// What a run sends, and how transfers of several runs share a lane.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/quantise.hpp"
#include "carriers/plans/executor.hpp"

namespace ringcore::carriers {
namespace {

// So much is set aside for one peer: more than any transfer that a run here is about to take.
constexpr std::uint64_t kMaxAsideBytes = std::uint64_t{4} << 30;

// Takes the header at the front of the lane, when it has arrived.
bool read_header(transport::Link& link, int lane, Rank peer) {
  const std::span<const std::byte> arrived = link.peek(lane);
  if (arrived.size() < sizeof(TransferHeader)) return false;
  TransferHeader header;
  std::memcpy(&header, arrived.data(), sizeof(header));
  if (header.magic != TransferHeader::kMagic) {
    throw Error(ErrorKind::kProtocol,
                "rank " + std::to_string(peer) + " sent something that is no transfer on lane " + std::to_string(lane));
  }
  link.consume(lane, sizeof(header));
  transport::LaneUse& use = link.lane_use(lane);
  use.taken += sizeof(header);
  use.receiving = true;
  use.accepted = false;
  use.receiving_run = header.run;
  use.receiving_bytes = header.bytes;
  return true;
}

// Whether the transfer that arrives may be set aside with what lies there.
void check_room_aside(const transport::LaneUse& use, Rank peer) {
  std::uint64_t bytes = use.receiving_bytes;
  for (const transport::SetAside& transfer : use.set_aside) bytes += transfer.payload.size();
  if (bytes <= kMaxAsideBytes && use.receiving_bytes <= kMaxAsideBytes) return;
  throw Error(ErrorKind::kProtocol, "rank " + std::to_string(peer) + " of the process set has sent " +
                                        std::to_string(bytes) + " bytes for operations that this rank has not begun, " +
                                        "and " + std::to_string(kMaxAsideBytes) +
                                        " are kept. Remedy: reduce such large tensors without a priority and in one " +
                                        "process set at a time, or in several parts.");
}

}  // namespace

bool set_aside(transport::Link& link, int lane, Rank peer) {
  transport::LaneUse& use = link.lane_use(lane);
  const bool known = use.receiving;
  if (!known && !read_header(link, lane, peer)) return false;
  if (use.accepted) return false;
  if (use.set_aside.empty() || !use.set_aside.back().arriving) {
    check_room_aside(use, peer);
    use.set_aside.push_back({.run = use.receiving_run, .payload = {}});
  }
  transport::SetAside& transfer = use.set_aside.back();
  bool moved = !known;
  while (transfer.payload.size() < use.receiving_bytes) {
    const std::span<const std::byte> arrived = link.peek(lane);
    const std::size_t bytes = std::min(arrived.size(), use.receiving_bytes - transfer.payload.size());
    if (bytes == 0) return moved;
    transfer.payload.insert(transfer.payload.end(), arrived.begin(),
                            arrived.begin() + static_cast<std::ptrdiff_t>(bytes));
    link.consume(lane, bytes);
    use.taken += bytes;
    moved = true;
  }
  transfer.arriving = false;
  use.receiving = false;
  return true;
}

// What several chunks are, or what is quantised, is copied, and the chunks are free again at once.
void PlanRun::post_chunk(const Step& step) {
  if (step.quantised) return post_quantised(step);
  if (step.sources.size() > 1) return post_together(step);
  const ChunkRef& source = step.sources.front();
  post(step.peer, address_of_source(source), bytes(source), &unsent(source));
}

void PlanRun::post_together(const Step& step) {
  const std::size_t total = bytes(step.sources);
  auto copy = std::make_unique_for_overwrite<std::byte[]>(total);
  std::byte* to = copy.get();
  for (const ChunkRef& source : step.sources) to = std::copy_n(address_of_source(source), bytes(source), to);
  post_copy(step.peer, std::move(copy), total);
}

void PlanRun::post_quantised(const Step& step) {
  const ChunkRef& source = step.sources.front();
  const std::size_t values = bytes(source) / element_;
  const std::size_t total = sent_bytes(step, values);
  auto copy = std::make_unique_for_overwrite<std::byte[]>(total);
  quantise(plan_.compression, operands_.dtype, address_of_source(source), values, copy.get());
  post_copy(step.peer, std::move(copy), total);
}

void PlanRun::post_copy(Rank rank, std::unique_ptr<std::byte[]> copy, std::size_t bytes) {
  Peer& peer = peer_of(rank);
  Outgoing& transfer = peer.outgoing.emplace_back();
  transfer.header = {.run = id_, .bytes = bytes};
  transfer.payload = copy.get();
  transfer.copy = std::move(copy);
  send(peer);
}

void PlanRun::post(Rank rank, const std::byte* payload, std::size_t bytes, std::uint32_t* busy) {
  if (busy != nullptr) ++*busy;
  Peer& peer = peer_of(rank);
  peer.outgoing.push_back({.header = {.run = id_, .bytes = bytes}, .payload = payload, .busy = busy, .copy = nullptr});
  send(peer);
}

bool PlanRun::send(Peer& peer) {
  if (!peer.sending()) return false;
  transport::Link& link = *peer.link;
  transport::LaneUse& use = link.lane_use(lane_);
  bool moved = settle(peer);
  while (peer.next < peer.outgoing.size()) {
    Outgoing& transfer = peer.outgoing[peer.next];
    if (held_ && transfer.sent == 0) return moved;
    if (transfer.header.bytes > 0 && link.has_messages()) {
      send_messages(peer, transfer);
      ++peer.next;
      moved = true;
      continue;
    }
    if (use.sending_run != 0 && use.sending_run != id_) return moved;
    const auto header = std::as_bytes(std::span(&transfer.header, 1));
    const std::span<const std::byte> payload(transfer.payload, transfer.header.bytes);
    if (transfer.sent < header.size() + payload.size()) {
      const std::size_t of_header = std::min(transfer.sent, header.size());
      const std::size_t written =
          link.write(lane_, header.subspan(of_header), payload.subspan(transfer.sent - of_header));
      if (written == 0) return moved;
      moved = true;
      transfer.sent += written;
      use.written += written;
      use.sending_run = id_;
      continue;
    }
    use.sending_run = 0;
    if (transfer.busy != nullptr) --*transfer.busy;
    transfer.copy.reset();
    ++peer.next;
    moved = true;
  }
  return moved;
}

void PlanRun::send_messages(Peer& peer, Outgoing& transfer) const {
  const std::span<const std::byte> payload(transfer.payload, transfer.header.bytes);
  for (std::size_t begin = 0; begin < payload.size(); begin += kMessageBytes) {
    const std::size_t bytes = std::min(payload.size() - begin, kMessageBytes);
    const bool last = begin + bytes == payload.size();
    peer.messages.push_back({.message = peer.link->send_message(lane_, channel_, payload.subspan(begin, bytes)),
                             .busy = last ? transfer.busy : nullptr,
                             .copy = last ? std::move(transfer.copy) : nullptr});
  }
}

// Looks which messages have left.
bool PlanRun::settle(Peer& peer) const {
  bool moved = false;
  while (!peer.messages.empty() && peer.link->message_done(peer.messages.front().message)) {
    if (peer.messages.front().busy != nullptr) --*peer.messages.front().busy;
    peer.messages.pop_front();
    moved = true;
  }
  return moved;
}

// Whether the next transfer of this run from the peer has arrived, at least its header.
bool PlanRun::accept_header(Peer& peer, std::size_t expected) {
  transport::Link& link = *peer.link;
  transport::LaneUse& use = link.lane_use(lane_);
  std::uint64_t bytes = 0;
  const auto aside = std::find_if(use.set_aside.begin(), use.set_aside.end(),
                                  [this](const auto& transfer) { return transfer.run == id_; });
  if (aside != use.set_aside.end()) {
    if (aside->arriving) set_aside(link, lane_, peer.rank);
    if (aside->arriving) return false;
    bytes = aside->payload.size();
    peer.aside = std::move(aside->payload);
    use.set_aside.erase(aside);
  } else {
    if (!use.receiving && !read_header(link, lane_, peer.rank)) return false;
    if (use.receiving_run != id_) return false;
    use.accepted = true;
    bytes = use.receiving_bytes;
  }
  if (bytes != expected) {
    throw Error(ErrorKind::kProtocol, "rank " + std::to_string(peer.rank) + " of the process set sends " +
                                          std::to_string(bytes) + " bytes where the " + plan_.generator +
                                          " plan expects " + std::to_string(expected));
  }
  return true;
}

void PlanRun::end_transfer(Peer& peer) {
  if (peer.aside) {
    peer.aside.reset();
  } else {
    transport::LaneUse& use = peer.link->lane_use(lane_);
    use.receiving = use.accepted = false;
  }
}

}  // namespace ringcore::carriers
