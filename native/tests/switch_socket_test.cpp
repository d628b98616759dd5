// Packets of a switch and its workers through the kernel, over loopback.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "aggregation/socket.hpp"

using namespace ringcore;
using namespace ringcore::aggregation;

namespace {

const Key kKey{};

std::vector<std::byte> payload(Segment segment, std::size_t bytes) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(segment));
}

Socket receiver() { return Socket::bound_to(resolve("127.0.0.1", 0)); }

// The segments of what has come, which is whole; waits for so many.
std::vector<Segment> segments(Socket& socket, std::size_t count) {
  std::vector<Segment> found;
  while (found.size() < count) {
    pollfd readable{.fd = socket.fd(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&readable, 1, 10'000) == 1);
    socket.receive([&](std::span<const std::byte> bytes, const Address&) {
      const auto packet = parse(bytes);
      REQUIRE(packet);
      CHECK(is_authentic(*packet, kKey));
      const Segment segment = packet->header.segment;
      const auto expected = payload(segment, packet->payload.size());
      CHECK(std::memcmp(packet->payload.data(), expected.data(), expected.size()) == 0);
      found.push_back(segment);
    });
  }
  return found;
}

std::vector<Segment> first_segments(Segment count) {
  std::vector<Segment> all;
  for (Segment segment = 0; segment < count; ++segment) all.push_back(segment);
  return all;
}

}  // namespace

TEST_CASE("socket: packets of several sizes to several workers come whole and in their order") {
  Socket from = receiver();
  std::array workers = {receiver(), receiver(), receiver()};
  constexpr Segment kCount = 100;
  const std::array<std::size_t, 3> sizes = {kMostPayload, 12, kMostPayload};
  Outbox out;
  for (Segment segment = 0; segment < kCount; ++segment) {
    const auto bytes = payload(segment, sizes[segment / 3 % sizes.size()]);
    const Header header{.action = segment % 7 == 0 ? Action::kHelp : Action::kData, .segment = segment};
    out.send(header, bytes, kKey, workers[0].address());
    for (std::size_t i = 1; i < workers.size(); ++i) out.send_again(workers[i].address());
  }
  out.sort();
  CHECK(from.send(out, 0) == out.items().size());
  for (Socket& worker : workers) CHECK(segments(worker, kCount) == first_segments(kCount));
}

TEST_CASE("socket: where the network takes no packets put together they go one by one") {
  Socket to = receiver();
  Socket from = Socket::connected_to(to.address());
  // Without checksums the kernel refuses to put packets together.
  constexpr int kOn = 1;
  REQUIRE(::setsockopt(from.fd(), SOL_SOCKET, SO_NO_CHECK, &kOn, sizeof(kOn)) == 0);
  constexpr Segment kCount = 40;
  Outbox out;
  for (Segment segment = 0; segment < kCount; ++segment) {
    out.send({.segment = segment}, payload(segment, kMostPayload), kKey, to.address());
  }
  CHECK(from.send(out, 0) == kCount);
  CHECK(segments(to, kCount) == first_segments(kCount));
}

TEST_CASE("socket: where nobody has listened for a while packets are put together as before") {
  Socket to = receiver();
  const Address address = to.address();
  Socket from = Socket::connected_to(address);
  to = receiver();
  Outbox out;
  for (Segment segment = 0; segment < 40; ++segment) {
    out.send({.segment = segment}, payload(segment, kMostPayload), kKey, address);
  }
  from.send(out, 0);  // and is told that nobody listens
  to = Socket::bound_to(address);
  from.send(out, 0);
  CHECK(from.send(out, 0) == out.items().size());
  std::size_t pieces = 0;
  std::vector<Segment> found;
  while (found.empty() || found.back() != 39) {
    pollfd readable{.fd = to.fd(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&readable, 1, 10'000) == 1);
    pieces += to.receive([&](std::span<const std::byte> bytes, const Address&) {
      const auto packet = parse(bytes);
      REQUIRE(packet);
      found.push_back(packet->header.segment);
    });
  }
  CHECK(pieces < found.size() / 4);
}
