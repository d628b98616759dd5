// The link between two ranks that share memory.
//
// A lane is a ring of bytes in the receiver's segment. A Unix socket stands beside the rings: a byte on it wakes a
// peer that sleeps, and its end tells that the peer has died or left. Nothing else is ever sent on it.
#pragma once

#include <memory>

#include "base/owned.hpp"
#include "base/types.hpp"
#include "transport/link.hpp"
#include "transport/shm/segment.hpp"

namespace ringcore::transport {

// `own` must outlive the link. `peers` is the peer's segment. `socket` is a stream socket connected to the
// peer, with nothing unread on it. Throws Error{kResource} when there is no memory for the rings.
std::unique_ptr<Link> make_shm_link(Rank self, Rank peer, const Segment& own,
                                    const std::shared_ptr<const Segment>& peers, Fd socket);

}  // namespace ringcore::transport
