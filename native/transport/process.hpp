// Another process of this host, as the system shows it.
#pragma once

#include <cstdint>
#include <optional>

#include <sys/types.h>

#include "base/owned.hpp"

namespace ringcore::transport {

class Process {
 public:
  // The one at the other end of a Unix socket.
  static Process at_other_end(int socket);

  explicit Process(pid_t pid);

  // Whether one of its threads waits for a processor or has one, or had one since this was last asked. False of one that
  // is stopped, ends or has ended, and where the system does not tell.
  bool wants_to_run();
  // Whether it has been seen to end: false where the system does not tell. Sure also after its number went to another one.
  bool has_ended() const;
  // Ends it, whatever it does, also if it is stopped. False where that cannot be done.
  bool end() const;

 private:
  pid_t pid_;
  Fd handle_;  // a pidfd; none before Linux 5.3
  std::optional<std::uint64_t> ran_;  // in ticks of the system
};

}  // namespace ringcore::transport
