// A rank's side of a switch, towards one that does not answer.
#include <doctest/doctest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "carriers/switch/clients.hpp"
#include "plan/backend.hpp"

using namespace ringcore;

namespace {

std::uint16_t port_of(const aggregation::Socket& socket) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  REQUIRE(::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

// Why there will be no sum, and whether the ranks can do without.
std::pair<Error, bool> failure_of(carriers::SwitchClient& client) {
  std::array<float, 8> data{};
  client.begin(data);
  while (true) {
    try {
      if (client.progress()) continue;
    } catch (const plan::BackendLost& error) {
      return {error, true};
    } catch (const Error& error) {
      return {error, false};
    }
    std::vector<pollfd> fds;
    client.add_wait_fds(fds);
    ::poll(fds.data(), fds.size(), 1);
  }
}

}  // namespace

TEST_CASE("a switch that does not answer is an error, and in an elastic job what the ranks go on without") {
  const auto silent = aggregation::Socket::bound_to(aggregation::resolve("127.0.0.1", 0));
  carriers::SwitchSettings settings{.host = "127.0.0.1", .port = port_of(silent), .key = {}, .silence = kMillisecond};
  const std::string title = "the switch 127.0.0.1:" + std::to_string(settings.port) + " (RINGCORE_SWITCH)";
  for (const bool elastic : {false, true}) {
    CAPTURE(elastic);
    settings.elastic = elastic;
    carriers::SwitchClients clients(settings, 0, 2);
    const auto [failure, is_lost] = failure_of(clients.of(transport::kFirstDataLane));
    const std::string what = failure.what();
    CAPTURE(what);
    CHECK(is_lost == elastic);
    CHECK(failure.kind() == ErrorKind::kPeerLost);
    CHECK(what.starts_with(title + " has not answered rank 0 for 0.001 s. "));
    CHECK(what.find("RINGCORE_SWITCH_KEY_FILE") != std::string::npos);
    CHECK((what.find("The ranks give it up") != std::string::npos) == elastic);
    CHECK((what.find("or leave out RINGCORE_SWITCH") != std::string::npos) != elastic);
  }
}
