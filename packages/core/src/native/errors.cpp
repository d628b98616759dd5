// C++ errors become the Python exceptions of ringcore._errors, kind by kind.
#include <string>

#include <nanobind/nanobind.h>

#include "base/error.hpp"
#include "raise.hpp"
#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {

void raise(const Error& error) {
  const std::string name(name_of(error.kind()));
  const nb::object type = nb::module_::import_("ringcore._errors").attr(name.c_str());
  if (error.kind() == ErrorKind::kMembershipChanged) nb::module_::import_("ringcore.job.members").attr("take_note")();
  // A peer may have had a part in the text, and need not have written UTF-8.
  const std::string text = error.what();
  const nb::object message =
      nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (message.is_valid()) PyErr_SetObject(type.ptr(), message.ptr());
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
