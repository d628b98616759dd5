// The secrets of encrypted connections, as Python hands them over.
#pragma once

#include <vector>

#include <nanobind/nanobind.h>

#include "transport/tcp/tls.hpp"

namespace ringcore::python {

// Throws Error{kInvalidArgument} where one has another length.
std::vector<transport::TlsSecret> tls_secrets(const std::vector<nanobind::bytes>& secrets);

}  // namespace ringcore::python
