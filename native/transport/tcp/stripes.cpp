#include "transport/tcp/stripes.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <poll.h>

namespace ringcore::transport {
namespace {

// Enough to keep a connection busy until the sender comes by again, little enough that what is urgent does not wait
// long behind it, and that a slow connection holds nothing up that a faster one could have carried.
constexpr unsigned kUnsentBytes = 256 * 1024;

}  // namespace

Stripes::Stripes(std::vector<Fd> sockets, LinkFailure& failure) : heads_(sockets.size()) {
  connections_.reserve(sockets.size());
  for (Fd& socket : sockets) connections_.emplace_back(std::move(socket), failure);
  for (Connection& connection : connections_) {
    connection.limit_unsent(kUnsentBytes);
    connection.keep_rate_over_long_way();
  }
  if (!is_striped()) return;
  for (Connection& connection : connections_) connection.pace_sends();
}

std::size_t Stripes::write(std::span<const std::byte> first, std::span<const std::byte> rest) {
  if (!is_striped()) {
    const std::size_t taken = connections_.front().send(first, rest);
    short_write_ = taken < first.size() + rest.size();
    return taken;
  }
  const std::size_t taken = write_blocks(first);
  return taken < first.size() || rest.empty() ? taken : taken + write_blocks(rest);
}

std::size_t Stripes::write_blocks(std::span<const std::byte> bytes) {
  const std::size_t asked = bytes.size();
  while (!bytes.empty()) {
    if (outgoing_.left == 0) {
      if (!begin_block(bytes)) break;
      continue;
    }
    const auto header = std::as_bytes(std::span(&outgoing_.block, 1)).subspan(outgoing_.header_sent);
    const std::size_t size = std::min(bytes.size(), outgoing_.left);
    const std::size_t sent = connections_[outgoing_.connection].send(header, bytes.first(size));
    if (sent == 0) break;
    const std::size_t of_header = std::min(sent, header.size());
    outgoing_.header_sent += of_header;
    outgoing_.left -= sent - of_header;
    bytes = bytes.subspan(sent - of_header);
  }
  short_write_ = !bytes.empty();
  return asked - bytes.size();
}

// Sends the beginning of the next block over the first connection that has room, beginning behind the last one.
bool Stripes::begin_block(std::span<const std::byte>& bytes) {
  const std::size_t size = std::min(bytes.size(), kMaxBlockBytes);
  const Block block{.number = outgoing_.block.number + 1, .bytes = static_cast<std::uint32_t>(size)};
  const auto header = std::as_bytes(std::span(&block, 1));
  for (std::size_t i = 1; i <= connections_.size(); ++i) {
    const std::size_t index = (outgoing_.connection + i) % connections_.size();
    const std::size_t sent = connections_[index].send(header, bytes.first(size));
    if (sent == 0) continue;
    const std::size_t of_header = std::min(sent, sizeof(Block));
    const std::size_t of_bytes = sent - of_header;
    outgoing_ = {.block = block, .connection = index, .header_sent = of_header, .left = size - of_bytes};
    bytes = bytes.subspan(of_bytes);
    return true;
  }
  return false;
}

bool Stripes::find_next_block() {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (!heads_[i]) {
      const std::span<const std::byte> arrived = connections_[i].peek();
      if (arrived.size() < sizeof(Block)) continue;
      std::memcpy(&heads_[i].emplace(), arrived.data(), sizeof(Block));
      connections_[i].consume(sizeof(Block));
    }
    if (heads_[i]->number != incoming_.next_number + 1) continue;
    incoming_ = {.connection = i, .left = heads_[i]->bytes, .next_number = heads_[i]->number};
    heads_[i].reset();
    return true;
  }
  return false;
}

std::span<const std::byte> Stripes::peek() {
  awaited_ = true;
  if (!is_striped()) return connections_.front().peek();
  if (incoming_.left == 0 && !find_next_block()) return {};
  const std::span<const std::byte> arrived = connections_[incoming_.connection].peek();
  return arrived.first(std::min(arrived.size(), incoming_.left));
}

void Stripes::consume(std::size_t bytes) {
  if (bytes > 0) awaited_ = false;
  connections_[incoming_.connection].consume(bytes);
  if (is_striped()) incoming_.left -= bytes;
}

std::size_t Stripes::read(std::span<std::byte> out) {
  const std::size_t taken = is_striped() ? read_blocks(out) : connections_.front().read(out);
  awaited_ = taken < out.size();
  return taken;
}

std::size_t Stripes::read_blocks(std::span<std::byte> out) {
  std::size_t taken = 0;
  while (taken < out.size() && (incoming_.left > 0 || find_next_block())) {
    const std::size_t size = std::min(out.size() - taken, incoming_.left);
    const std::size_t got = connections_[incoming_.connection].read(out.subspan(taken, size));
    if (got == 0) break;
    incoming_.left -= got;
    taken += got;
  }
  return taken;
}

bool Stripes::fill(bool anyway) {
  bool news = false;
  for (Connection& connection : connections_) {
    if (!reads(connection, anyway)) continue;
    news |= connection.is_seen_with_others() ? connection.advance() : connection.fill();
  }
  if (!news) {
    for (Connection& connection : connections_) connection.wake_for_expected();
  }
  return news;
}

bool Stripes::reads(const Connection& connection, bool anyway) const {
  return awaited_ || anyway || !connection.takes_bytes() || connection.has_unsent();
}

bool Stripes::holds_unsent() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection.has_unsent(); });
}

bool Stripes::ended() const {
  if (!is_striped() || incoming_.left > 0) return connections_[incoming_.connection].ended();
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const bool is_behind = heads_[i] && heads_[i]->number != incoming_.next_number + 1;
    if (!connections_[i].ended() && !is_behind) return false;
  }
  return true;
}

Pace Stripes::pace() const {
  std::vector<Pace> paces;
  for (const Connection& connection : connections_) {
    if (connection.is_tcp()) paces.push_back(connection.pace());
  }
  return side_by_side(paces);
}

void Stripes::add_wait_fds(std::vector<pollfd>& fds, bool open, bool anyway) const {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const Connection& connection = connections_[i];
    const bool reads_it = reads(connection, anyway) && connection.wants_bytes() && !connection.is_seen_with_others();
    const int readable = reads_it ? POLLIN | POLLRDHUP : 0;
    // In the middle of a block only its own connection can take more.
    const bool may_take = connections_[i].takes_bytes() && (outgoing_.left == 0 || outgoing_.connection == i);
    const bool waits = (short_write_ && may_take) || connections_[i].has_unsent();
    const int writable = open && waits ? POLLOUT : 0;
    if ((readable | writable) != 0) fds.push_back({connections_[i].fd(), static_cast<short>(readable | writable), 0});
  }
}

}  // namespace ringcore::transport
