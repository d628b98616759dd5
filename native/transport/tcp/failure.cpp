#include "transport/tcp/failure.hpp"

#include <cerrno>
#include <utility>

#include "base/error.hpp"

namespace ringcore::transport {

void LinkFailure::fail(std::string why) {
  if (reason) return;
  reason = std::move(why);
  just_now = true;
}

void LinkFailure::close() {
  closed = closed || !reason;
  fail(kClosed);
}

void LinkFailure::fail_with(int error_number) {
  switch (error_number) {
    case ECONNRESET:
    case EPIPE: closed = closed || !reason; return fail(with_errno("reset the connection", error_number));
    case ETIMEDOUT: return fail(with_errno("stopped answering", error_number));
    default: return fail(with_errno("lost the connection", error_number));
  }
}

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR;
}

}  // namespace ringcore::transport
