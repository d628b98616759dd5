// What ringcore asks of OpenSSL 3. The library is opened at run time, neither linked nor bundled: the system's security
// updates apply, and a wheel works where it is not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// OpenSSL's own types, which nothing here looks into.
struct bio_st;
struct bio_method_st;
struct engine_st;
struct evp_cipher_ctx_st;
struct evp_cipher_st;
struct evp_md_st;
struct ssl_cipher_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct ssl_session_st;
struct ssl_st;

namespace ringcore::transport::openssl {

using PskClient = int(ssl_st*, const evp_md_st*, const unsigned char**, std::size_t*, ssl_session_st**);
using KeyLog = void(const ssl_st*, const char*);
using PskServer = int(ssl_st*, const unsigned char*, std::size_t, ssl_session_st**);

// The functions, under OpenSSL's names without their prefix where that is unambiguous.
struct Api {
  unsigned (*version_major)();
  const char* (*version_text)(int);

  const ssl_method_st* (*tls_method)();
  ssl_ctx_st* (*ctx_new)(const ssl_method_st*);
  long (*ctx_ctrl)(ssl_ctx_st*, int, long, void*);
  std::uint64_t (*ctx_set_options)(ssl_ctx_st*, std::uint64_t);
  int (*ctx_set_ciphersuites)(ssl_ctx_st*, const char*);
  int (*ctx_set_num_tickets)(ssl_ctx_st*, std::size_t);
  void (*ctx_set_verify)(ssl_ctx_st*, int, void*);
  void (*ctx_set_keylog_callback)(ssl_ctx_st*, KeyLog*);
  void (*ctx_set_psk_use_session_callback)(ssl_ctx_st*, PskClient*);
  void (*ctx_set_psk_find_session_callback)(ssl_ctx_st*, PskServer*);

  ssl_st* (*ssl_new)(ssl_ctx_st*);
  void (*ssl_free)(ssl_st*);
  int (*ssl_set_ex_data)(ssl_st*, int, void*);
  void* (*ssl_get_ex_data)(const ssl_st*, int);
  void (*ssl_set_bio)(ssl_st*, bio_st*, bio_st*);
  void (*ssl_set_connect_state)(ssl_st*);
  void (*ssl_set_accept_state)(ssl_st*);
  int (*ssl_do_handshake)(ssl_st*);
  int (*ssl_get_error)(const ssl_st*, int);
  int (*ssl_session_reused)(const ssl_st*);
  const ssl_cipher_st* (*ssl_get_current_cipher)(const ssl_st*);
  std::uint32_t (*cipher_id)(const ssl_cipher_st*);
  const ssl_cipher_st* (*cipher_find)(ssl_st*, const unsigned char*);
  ssl_session_st* (*session_new)();
  void (*session_free)(ssl_session_st*);
  int (*session_set1_master_key)(ssl_session_st*, const unsigned char*, std::size_t);
  int (*session_set_cipher)(ssl_session_st*, const ssl_cipher_st*);
  int (*session_set_protocol_version)(ssl_session_st*, int);

  bio_method_st* (*bio_meth_new)(int, const char*);
  int (*bio_meth_set_read)(bio_method_st*, int (*)(bio_st*, char*, int));
  int (*bio_meth_set_write)(bio_method_st*, int (*)(bio_st*, const char*, int));
  int (*bio_meth_set_ctrl)(bio_method_st*, long (*)(bio_st*, int, long, void*));
  int (*bio_get_new_index)();
  bio_st* (*bio_new)(const bio_method_st*);
  void (*bio_set_init)(bio_st*, int);
  void (*bio_set_data)(bio_st*, void*);
  void* (*bio_get_data)(bio_st*);
  void (*bio_set_flags)(bio_st*, int);
  void (*bio_clear_flags)(bio_st*, int);

  const evp_cipher_st* (*aes_128_gcm)();
  const evp_cipher_st* (*chacha20_poly1305)();
  const evp_md_st* (*sha256)();
  unsigned char* (*hmac)(const evp_md_st*, const void*, int, const unsigned char*, std::size_t, unsigned char*,
                         unsigned*);
  evp_cipher_ctx_st* (*cipher_context_new)();
  void (*cipher_context_free)(evp_cipher_ctx_st*);
  int (*cipher_init)(evp_cipher_ctx_st*, const evp_cipher_st*, engine_st*, const unsigned char*, const unsigned char*,
                     int);
  int (*cipher_update)(evp_cipher_ctx_st*, unsigned char*, int*, const unsigned char*, int);
  int (*cipher_final)(evp_cipher_ctx_st*, unsigned char*, int*);
  int (*cipher_control)(evp_cipher_ctx_st*, int, int, void*);

  unsigned long (*err_get_error)();
  void (*err_clear_error)();
  void (*err_error_string_n)(unsigned long, char*, std::size_t);

  std::string path;  // the file
};

// Which library `api` opens, before its first call; else the system's.
void set_library(std::string path);

// Opens the library at the first call; the copy that the process has loaded already is taken where there is one. Throws
// Error{kResource} where it is missing or is not OpenSSL 3, with what to do.
const Api& api();

// What OpenSSL says of the last failure on this thread, which is then forgotten.
std::string last_error();

// Of <openssl/ssl.h>, <openssl/evp.h> and <openssl/bio.h> of every OpenSSL 3.
inline constexpr int kTls13 = 0x0304;
inline constexpr std::uint32_t kAes128GcmSha256 = 0x03001301;  // TLS1_3_CK_AES_128_GCM_SHA256
inline constexpr std::uint32_t kChaCha20Poly1305Sha256 = 0x03001303;  // TLS1_3_CK_CHACHA20_POLY1305_SHA256
inline constexpr int kCtrlSessionCache = 44;  // SSL_CTRL_SET_SESS_CACHE_MODE
inline constexpr int kCtrlGroupsList = 92;  // SSL_CTRL_SET_GROUPS_LIST
inline constexpr int kCtrlMinProtocol = 123;  // SSL_CTRL_SET_MIN_PROTO_VERSION
inline constexpr int kCtrlMaxProtocol = 124;  // SSL_CTRL_SET_MAX_PROTO_VERSION
inline constexpr std::uint64_t kNoTicket = 1 << 14;  // SSL_OP_NO_TICKET
inline constexpr int kVerifyPeer = 1;  // SSL_VERIFY_PEER
inline constexpr int kErrorWantRead = 2;  // SSL_ERROR_WANT_READ
inline constexpr int kCipherGetTag = 0x10;  // EVP_CTRL_AEAD_GET_TAG
inline constexpr int kCipherSetTag = 0x11;  // EVP_CTRL_AEAD_SET_TAG
inline constexpr int kBioSourceSink = 0x0400;  // BIO_TYPE_SOURCE_SINK
inline constexpr int kBioCtrlFlush = 11;  // BIO_CTRL_FLUSH
inline constexpr int kBioRetryRead = 0x01 | 0x08;  // BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY

}  // namespace ringcore::transport::openssl
