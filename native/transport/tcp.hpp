// The link between two ranks over stream sockets: one connection a lane, TCP between hosts, Unix sockets inside one.
//
// The kernel's buffers are the lanes' buffers. `read` receives straight into its destination; only `peek` needs a
// buffer of its own.
#pragma once

#include <memory>
#include <vector>

#include "base/owned.hpp"
#include "base/types.hpp"
#include "transport/link.hpp"

namespace ringcore::transport {

// `lanes` are kLaneCount connected stream sockets whose other ends belong to the same peer, in the order of the lanes,
// with nothing unread on them that is not for the link. Makes them non-blocking.
// Throws Error{kInvalidArgument} for another number of lanes, Error{kResource} when a socket refuses its options.
std::unique_ptr<Link> make_tcp_link(Rank self, Rank peer, std::vector<Fd> lanes);

}  // namespace ringcore::transport
