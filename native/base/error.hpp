// One tree of errors; the Python package has the same tree with the same names.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ringcore {

enum class ErrorKind : std::uint8_t {
  kInvalidArgument,  // found before anything was sent; only this rank is affected
  kMismatch,         // ranks submitted things that do not fit together; the same on every rank
  kDuplicateName,    // a name was submitted again before its first use completed
  kDeadlock,         // every rank blocks in an operation that another has not submitted
  kTimeout,          // a rank did not submit an operation within the limit
  kPeerLost,         // a rank died, left, stopped answering or could not be reached
  kProtocol,         // a peer sent something that no correct peer sends
  kResource,         // memory, descriptors: the operating system refused
  kShutdown,         // the engine was shut down while the operation waited
  kMembershipChanged,  // ranks were lost, and the others go on; the same on all of them
  kEvicted,          // the others go on without this rank, or it reaches too few of them to go on
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Of the exception in Python: "PeerLostError" ...
std::string_view name_of(ErrorKind kind);

// Appends ": <strerror> (errno N)".
std::string with_errno(const std::string& message, int error_number);

}  // namespace ringcore
