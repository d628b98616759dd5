// What the kernel has measured on a TCP connection.
#pragma once

#include "transport/pace.hpp"

namespace ringcore::transport {

// Of sending. Nothing is known of what is no TCP connection.
Pace pace_of_socket(int fd);

}  // namespace ringcore::transport
