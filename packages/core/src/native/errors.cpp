// C++ errors become the Python exceptions of ringcore._errors, kind by kind.
#include <nanobind/nanobind.h>

#include "base/error.hpp"
#include "raise.hpp"
#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {

void raise(const Error& error) {
  // By name, so that the order of the kinds matters nowhere.
  const char* name = "RingcoreError";
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument: name = "InvalidArgument"; break;
    case ErrorKind::kMismatch: name = "MismatchError"; break;
    case ErrorKind::kDuplicateName: name = "DuplicateNameError"; break;
    case ErrorKind::kDeadlock: name = "DeadlockError"; break;
    case ErrorKind::kTimeout: name = "TimeoutError"; break;
    case ErrorKind::kPeerLost: name = "PeerLostError"; break;
    case ErrorKind::kProtocol: name = "ProtocolError"; break;
    case ErrorKind::kResource: name = "ResourceError"; break;
    case ErrorKind::kShutdown: name = "ShutdownError"; break;
  }
  const nb::object type = nb::module_::import_("ringcore._errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

void register_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace ringcore::python
