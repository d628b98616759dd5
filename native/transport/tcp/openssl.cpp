#include "transport/tcp/openssl.hpp"

#include <array>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/library.hpp"

namespace ringcore::transport::openssl {
namespace {

constexpr unsigned kMajor = 3;

std::vector<std::string>& names() {
  static std::vector<std::string> names{"libssl.so.3", "libssl.so"};
  return names;
}

// dlsym finds the functions of libcrypto too, which libssl needs.
Api load() {
  const Library library("OpenSSL 3 (libssl)", names());
  Api api{};
  library.load("OPENSSL_version_major", api.version_major);
  library.load("OpenSSL_version", api.version_text);
  if (api.version_major() != kMajor) {
    throw Error(ErrorKind::kResource, library.path() + " is " + api.version_text(0) + ", not OpenSSL 3");
  }
  library.load("TLS_method", api.tls_method);
  library.load("SSL_CTX_new", api.ctx_new);
  library.load("SSL_CTX_ctrl", api.ctx_ctrl);
  library.load("SSL_CTX_set_options", api.ctx_set_options);
  library.load("SSL_CTX_set_ciphersuites", api.ctx_set_ciphersuites);
  library.load("SSL_CTX_set_num_tickets", api.ctx_set_num_tickets);
  library.load("SSL_CTX_set_verify", api.ctx_set_verify);
  library.load("SSL_CTX_set_psk_use_session_callback", api.ctx_set_psk_use_session_callback);
  library.load("SSL_CTX_set_psk_find_session_callback", api.ctx_set_psk_find_session_callback);
  library.load("SSL_CTX_set_keylog_callback", api.ctx_set_keylog_callback);
  library.load("SSL_new", api.ssl_new);
  library.load("SSL_free", api.ssl_free);
  library.load("SSL_set_ex_data", api.ssl_set_ex_data);
  library.load("SSL_get_ex_data", api.ssl_get_ex_data);
  library.load("SSL_set_bio", api.ssl_set_bio);
  library.load("SSL_set_connect_state", api.ssl_set_connect_state);
  library.load("SSL_set_accept_state", api.ssl_set_accept_state);
  library.load("SSL_do_handshake", api.ssl_do_handshake);
  library.load("SSL_get_error", api.ssl_get_error);
  library.load("SSL_session_reused", api.ssl_session_reused);
  library.load("SSL_get_current_cipher", api.ssl_get_current_cipher);
  library.load("SSL_CIPHER_get_id", api.cipher_id);
  library.load("SSL_CIPHER_find", api.cipher_find);
  library.load("SSL_SESSION_new", api.session_new);
  library.load("SSL_SESSION_free", api.session_free);
  library.load("SSL_SESSION_set1_master_key", api.session_set1_master_key);
  library.load("SSL_SESSION_set_cipher", api.session_set_cipher);
  library.load("SSL_SESSION_set_protocol_version", api.session_set_protocol_version);
  library.load("BIO_meth_new", api.bio_meth_new);
  library.load("BIO_meth_set_read", api.bio_meth_set_read);
  library.load("BIO_meth_set_write", api.bio_meth_set_write);
  library.load("BIO_meth_set_ctrl", api.bio_meth_set_ctrl);
  library.load("BIO_get_new_index", api.bio_get_new_index);
  library.load("BIO_new", api.bio_new);
  library.load("BIO_set_init", api.bio_set_init);
  library.load("BIO_set_data", api.bio_set_data);
  library.load("BIO_get_data", api.bio_get_data);
  library.load("BIO_set_flags", api.bio_set_flags);
  library.load("BIO_clear_flags", api.bio_clear_flags);
  library.load("EVP_aes_128_gcm", api.aes_128_gcm);
  library.load("EVP_chacha20_poly1305", api.chacha20_poly1305);
  library.load("EVP_sha256", api.sha256);
  library.load("HMAC", api.hmac);
  library.load("EVP_CIPHER_CTX_new", api.cipher_context_new);
  library.load("EVP_CIPHER_CTX_free", api.cipher_context_free);
  library.load("EVP_CipherInit_ex", api.cipher_init);
  library.load("EVP_CipherUpdate", api.cipher_update);
  library.load("EVP_CipherFinal_ex", api.cipher_final);
  library.load("EVP_CIPHER_CTX_ctrl", api.cipher_control);
  library.load("ERR_get_error", api.err_get_error);
  library.load("ERR_clear_error", api.err_clear_error);
  library.load("ERR_error_string_n", api.err_error_string_n);
  api.path = library.path();
  return api;
}

}  // namespace

void set_library(std::string path) { names() = {std::move(path)}; }

const Api& api() {
  try {
    static const Api loaded = load();
    return loaded;
  } catch (const Error& error) {
    throw Error(ErrorKind::kResource,
                std::string("traffic between ranks cannot be encrypted: ") + error.what() +
                    ". Remedy: install OpenSSL 3 (Debian and Ubuntu: apt-get install libssl3; Fedora and RHEL: dnf "
                    "install openssl-libs) or name it in RINGCORE_OPENSSL_LIBRARY, or, where the network between the "
                    "hosts is private, set "
                    "RINGCORE_ENCRYPTION=off on all ranks");
  }
}

std::string last_error() {
  const unsigned long code = api().err_get_error();
  api().err_clear_error();
  if (code == 0) return "no reason given";
  std::array<char, 256> text{};
  api().err_error_string_n(code, text.data(), text.size());
  return text.data();
}

}  // namespace ringcore::transport::openssl
