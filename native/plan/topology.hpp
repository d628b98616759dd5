// Who takes part, where they stand, and what lies between them: plans use it to keep traffic inside hosts, the cost model
// to know each link.
#pragma once

#include <vector>

#include "base/types.hpp"

namespace ringcore::plan {

struct LinkCost {
  double latency_s = 0;
  double seconds_per_byte = 0;
  double message_s = 0;  // what sending a message, or taking it, costs the processor
  bool operator==(const LinkCost&) const = default;
};

// One direction of a cable. What goes through it goes one after the other.
struct Cable {
  int from = 0;  // a host, or a switch: those have the numbers behind the hosts'
  int to = 0;
  double latency_s = 0;
  double seconds_per_byte = 0;
  bool operator==(const Cable&) const = default;
};

// The defaults are those of a current server: shared memory inside a host, 10 Gbit/s Ethernet between hosts. All ranks
// use the same numbers, because they must choose the same plans. What a message costs was measured with
// `ringcore_benchmark messages` on a virtual machine of 2025 (Linux 6, AVX-512), both ends together: 0.2 us by shared
// memory, 5.6 us by TCP, most of it in the kernel.
struct Links {
  LinkCost in_host{.latency_s = 0.4e-6, .seconds_per_byte = 1 / 8e9, .message_s = 0.1e-6};
  // Of every host's port to one switch that holds nobody up; the ranks of a host share its port.
  LinkCost between_hosts{.latency_s = 25e-6, .seconds_per_byte = 1 / 1.2e9, .message_s = 2.8e-6};
  // By host: seconds a byte of its port, either way, where ports differ. Empty: all are as `between_hosts` says.
  std::vector<double> ports;
  // An uneven network says all of its cables instead. Transfers take the way of the fewest cables, and through other hosts only
  // where there is no other.
  std::vector<Cable> cables;
  bool told = false;  // somebody has said what they are: what transfers show changes nothing
  bool operator==(const Links&) const = default;

  // Whether all hosts are connected alike.
  bool even() const { return ports.empty() && cables.empty(); }
  double port_seconds_per_byte(int host) const {
    return static_cast<std::size_t>(host) < ports.size() ? ports[static_cast<std::size_t>(host)]
                                                         : between_hosts.seconds_per_byte;
  }
};

// Nodes are the ranks, and behind them those who serve: they take part in plans and have no data of their own.
struct Topology {
  std::vector<int> host_of;  // index: node; value: small number naming the host
  bool memory_shared_in_host = true;  // ranks of a host see each other's registered memory
  int serving = 0;  // the last so many nodes are no ranks
  Links links;
  bool operator==(const Topology&) const = default;

  int nodes() const { return static_cast<int>(host_of.size()); }
  int ranks() const { return nodes() - serving; }
  int hosts() const;  // their numbers are less than this
  bool single_host() const;  // of all ranks
  // The ranks, and the first so many of those who serve.
  Topology with_servers(int servers) const;
  // The ranks alone, and all nodes as if each of them were one.
  Topology without_servers() const { return with_servers(0); }
  Topology of_equals() const;
  // The ranks of each host, in the order of the hosts' numbers.
  std::vector<std::vector<Rank>> ranks_by_host() const;
};

}  // namespace ringcore::plan
