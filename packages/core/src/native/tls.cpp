// Encryption between hosts: the library that does it, and the secrets of connections.
#include "tls.hpp"

#include <cstring>
#include <string>

#include <nanobind/stl/string.h>

#include "base/error.hpp"
#include "raise.hpp"
#include "register.hpp"
#include "transport/tcp/kernel_tls.hpp"
#include "transport/tcp/openssl.hpp"

namespace nb = nanobind;

namespace ringcore::python {

std::vector<transport::TlsSecret> tls_secrets(const std::vector<nb::bytes>& secrets) {
  std::vector<transport::TlsSecret> made(secrets.size());
  for (std::size_t i = 0; i < secrets.size(); ++i) {
    if (secrets[i].size() != transport::TlsSecret::kBytes) {
      throw Error(ErrorKind::kInvalidArgument,
                  "the secret of a connection has 32 bytes, not " + std::to_string(secrets[i].size()));
    }
    std::memcpy(made[i].bytes.data(), secrets[i].data(), transport::TlsSecret::kBytes);
  }
  return made;
}

void register_tls(nb::module_& module) {
  module.def("set_openssl_library", &transport::openssl::set_library, nb::arg("path"),
             "The libssl to use, before the first use; else the system's.");
  module.def(
      "tls_library",
      [] {
        const transport::openssl::Api& api = transport::openssl::api();
        constexpr int kVersion = 0;  // OPENSSL_VERSION
        return std::string(api.version_text(kVersion)) + " (" + api.path + ")";
      },
      "Opens the OpenSSL that encrypts between hosts; its version and its file. Raises ResourceError.");
  module.def("use_kernel_tls", &transport::kernel_tls::use, nb::arg("wanted"),
             "Whether connections from now on have the kernel encrypt what they send.");
  module.def("kernel_tls_refusal", &transport::kernel_tls::refusal,
             "Why the kernel cannot encrypt what connections send; empty where it can.");
}

}  // namespace ringcore::python
