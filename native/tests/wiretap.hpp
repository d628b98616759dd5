// Two ends of TLS and the wire between them, which the test carries itself.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "link_fixtures.hpp"
#include "transport/tcp/tls.hpp"

namespace ringcore::test {

// Two ends and the wire between them, which the test carries itself.
class Wiretap {
 public:
  explicit Wiretap(transport::TlsSecret of_client, transport::TlsSecret of_server,
                   const std::function<std::pair<Fd, Fd>()>& connect = unix_pair)
      : client_sockets_(connect()),
        server_sockets_(connect()),
        client(client_sockets_.first.get(), of_client, transport::Tls::Side::kClient, 0, client_failure),
        server(server_sockets_.first.get(), of_server, transport::Tls::Side::kServer, 1, server_failure) {}

  // Carries what has been sent from one end to the other, as far as there is room for it; `change` may change it. Returns the
  // bytes carried.
  std::vector<std::byte> carry(bool from_client, const std::function<void(std::vector<std::byte>&)>& change = {}) {
    const int from = (from_client ? client_sockets_ : server_sockets_).second.get();
    const int to = (from_client ? server_sockets_ : client_sockets_).second.get();
    std::vector<std::byte> bytes(std::size_t{1} << 20);
    const auto got = std::max<ssize_t>(::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_PEEK), 0);
    bytes.resize(static_cast<std::size_t>(got));
    if (bytes.empty()) return bytes;
    if (change) change(bytes);
    const auto sent = std::max<ssize_t>(::send(to, bytes.data(), bytes.size(), MSG_DONTWAIT), 0);
    const bool whole = sent == static_cast<ssize_t>(bytes.size());
    REQUIRE((whole || static_cast<ssize_t>(bytes.size()) == got));  // what is left is changed when its turn comes
    std::vector<std::byte> taken(static_cast<std::size_t>(whole ? got : sent));
    REQUIRE(::recv(from, taken.data(), taken.size(), MSG_DONTWAIT) == static_cast<ssize_t>(taken.size()));
    bytes.resize(static_cast<std::size_t>(sent));
    return bytes;
  }

  // True when both ends have what they need to talk; false when one has failed.
  bool shake_hands() {
    for (int turn = 0; turn < 10 && !(client.is_open() && server.is_open()); ++turn) {
      client.advance();
      carry(true);
      server.advance();
      carry(false);
    }
    client.advance();
    carry(true);
    server.advance();
    return client.is_open() && server.is_open() && !client_failure.reason && !server_failure.reason;
  }

 private:
  std::pair<Fd, Fd> client_sockets_;
  std::pair<Fd, Fd> server_sockets_;

 public:
  transport::LinkFailure client_failure;
  transport::LinkFailure server_failure;
  transport::Tls client;
  transport::Tls server;
};

inline std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = stream_byte(0, 1, i);
  return made;
}

}  // namespace ringcore::test
