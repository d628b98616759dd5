// A lane's stream of bytes over one connection, or striped over several where one cannot fill the network.
//
// Striped, the stream is cut into blocks. A block goes whole over one connection, behind its number and its length; the
// next one goes over the next connection that has room, so that a slow one gets less. The receiver takes the blocks in
// the order of their numbers: what came early waits in its connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport/tcp/connection.hpp"

struct pollfd;

namespace ringcore::transport {

class Stripes {
 public:
  // Takes the sockets of one lane, at least one. Throws as Connection does.
  Stripes(std::vector<Fd> sockets, LinkFailure& failure);

  // As those of Link. Each piece that a call of `write` is given arrives contiguously for `peek` as far as it is no
  // longer than kMaxBlockBytes, and longer data in pieces that are multiples of 64 bytes.
  static constexpr std::size_t kMaxBlockBytes = 64 * 1024;
  std::size_t write(std::span<const std::byte> first, std::span<const std::byte> rest);
  std::span<const std::byte> peek();
  void consume(std::size_t bytes);
  std::size_t read(std::span<std::byte> out);
  bool blocked() const { return short_write_ || holds_unsent(); }
  bool holds_unsent() const;
  void expect(std::size_t bytes) {
    if (!is_striped()) connections_.front().expect(bytes);
  }
  // Takes what has arrived, where somebody waits for it, or `anyway`; false when there was nothing, and the kernel will wake
  // a sleeper.
  bool fill(bool anyway);
  // Nothing more can be read: every connection has ended, or has only what comes behind a block that did not come.
  bool ended() const;
  Pace pace() const;
  // `open`: the link has not failed, so that it takes bytes as well. `anyway`: as above.
  void add_wait_fds(std::vector<pollfd>& fds, bool open, bool anyway) const;

  const std::vector<Connection>& connections() const { return connections_; }
  std::vector<Connection>& connections() { return connections_; }

 private:
  struct Block {
    std::uint32_t number = 0;
    std::uint32_t bytes = 0;
  };
  struct Outgoing {
    Block block;
    std::size_t connection = 0;
    std::size_t header_sent = 0;
    std::size_t left = 0;  // bytes of the block that were not taken yet; 0: no block has been begun
  };
  struct Incoming {
    std::size_t connection = 0;
    std::size_t left = 0;  // bytes of the block that were not consumed yet; 0: the next block is looked for
    std::uint32_t next_number = 0;
  };

  bool is_striped() const { return connections_.size() > 1; }
  std::size_t read_blocks(std::span<std::byte> out);
  // Whether what comes over a connection is taken now: what nobody waits for stays in its socket, and wakes nobody. Ends
  // that agree on their keys wait for each other.
  bool reads(const Connection& connection, bool anyway) const;
  std::size_t write_blocks(std::span<const std::byte> bytes);
  bool begin_block(std::span<const std::byte>& bytes);
  bool find_next_block();

  std::vector<Connection> connections_;
  std::vector<std::optional<Block>> heads_;  // by connection: its next block, as far as that is known
  Outgoing outgoing_;
  Incoming incoming_;
  bool short_write_ = false;  // the last write found no room
  bool awaited_ = false;  // whoever read last wanted more than was there
};

}  // namespace ringcore::transport
