// Why a link over sockets failed; all of its connections tell the same one.
#pragma once

#include <optional>
#include <string>

namespace ringcore::transport {

struct LinkFailure {
  std::optional<std::string> reason;
  bool just_now = false;  // nobody has been woken for it yet
  bool closed = false;  // by the peer, as far as is seen from here

  static constexpr const char* kClosed = "closed the connection";
  void fail(std::string why);
  void close();
  void fail_with(int error_number);
};

// Whether a call on a socket is to be made again later.
bool is_temporary(int error_number);

}  // namespace ringcore::transport
