// The link between two ranks over stream sockets: TCP between hosts, Unix sockets inside one.
//
// The kernel's buffers are the lanes' buffers. `read` receives straight into its destination; only `peek` needs a
// buffer of its own. The control lane has one connection, a lane of data has one or several (see stripes.hpp).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/owned.hpp"
#include "base/types.hpp"
#include "transport/link.hpp"
#include "transport/tcp/readiness.hpp"
#include "transport/tcp/tls.hpp"

namespace ringcore::transport {

// Has lanes connected that are needed now, for the first time.
class LaneOpener {
 public:
  virtual ~LaneOpener() = default;
  // Called by whoever drives the engine for each operation that wants the lane, as long as it is not there: does not block.
  // `attach` takes what comes of it.
  virtual void open(Rank peer, int lane) = 0;
};

// A link whose lanes are connected when they are first needed.
class LaneLink : public Link {
 public:
  // Takes the sockets of a lane that is not there yet, at least one. `secrets` as below.
  virtual void attach(int lane, std::vector<Fd> sockets, std::span<const TlsSecret> secrets) = 0;
  // A lane that was asked for cannot be connected: the link has failed, unless it has before.
  virtual void give_up(const std::string& why) = 0;
};

// `sockets` are connected stream sockets whose other ends belong to the same peer, with nothing unread on them that is
// not for the link: one for each lane in the order of the lanes, then further ones for each lane of data in their
// order, as often as the link is striped. Makes them non-blocking.
// `secrets`: one for each socket, which both ends know, where the link is encrypted (tls.hpp); else none.
// Throws Error{kInvalidArgument} for another number of sockets or secrets, Error{kResource} when a socket refuses its
// options, and where OpenSSL is needed and missing.
std::unique_ptr<Link> make_tcp_link(Rank self, Rank peer, std::vector<Fd> sockets,
                                    std::span<const TlsSecret> secrets = {});

// The same with a socket for control and none for data yet. `opener` and `readiness` outlive the link; whoever drives it
// looks there first.
std::unique_ptr<LaneLink> make_tcp_link(Rank self, Rank peer, Fd control, std::span<const TlsSecret> secrets,
                                        LaneOpener& opener, SocketReadiness& readiness);
// The same with no socket yet.
std::unique_ptr<LaneLink> make_tcp_link(Rank self, Rank peer, LaneOpener& opener, SocketReadiness& readiness);

}  // namespace ringcore::transport
