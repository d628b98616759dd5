// Another process of this host, as the system shows it.
#pragma once

#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace ringcore::transport {

class Process {
 public:
  // The one at the other end of a Unix socket.
  static Process at_other_end(int socket);

  explicit Process(pid_t pid) : pid_(pid) {}

  // Whether one of its threads waits for a processor or has one, or had one since this was last asked. False of one that
  // is stopped, ends or has ended, and where the system does not tell.
  bool wants_to_run();

 private:
  pid_t pid_;
  std::optional<std::uint64_t> ran_;  // in ticks of the system
};

}  // namespace ringcore::transport
