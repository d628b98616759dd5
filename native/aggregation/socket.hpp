// A UDP socket for many packets at a time: what goes to one address, and what has come from one behind each other, the
// kernel carries as one, from Linux 5.0 on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "aggregation/wire.hpp"
#include "base/owned.hpp"

namespace ringcore::aggregation {

// The first address of a host. Throws Error{kInvalidArgument} where there is none.
Address resolve(const std::string& host, std::uint16_t port);
// "10.0.0.1:29600"
std::string describe(const Address& address);

class Socket {
 public:
  // Takes what is sent to `address`. Throws Error{kResource, kInvalidArgument}.
  static Socket bound_to(const Address& address);
  // At the address that this host has towards `peer`; takes what comes from there alone.
  static Socket connected_to(const Address& peer);

  using Visit = std::function<void(std::span<const std::byte> packet, const Address& from)>;
  static constexpr std::size_t kAtOnce = 32;
  // Of what has come: some. In how many pieces it came; behind kAtOnce of them there may be more.
  std::size_t receive(const Visit& visit);
  // Sends from item `first` on; the first one that there was no room for. Quickest where the outbox is sorted.
  std::size_t send(const Outbox& out, std::size_t first);

  int fd() const { return fd_.get(); }
  Address address() const;

 private:
  explicit Socket(const Address& family);

  Fd fd_;
  int level_ = 0;  // of the options that say the type of service
  int option_ = 0;
  bool joins_ = true;  // packets to one address, until the network refuses
};

}  // namespace ringcore::aggregation
