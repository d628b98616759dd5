// Whether the host of a peer still acknowledges what is sent to it.
#include <doctest/doctest.h>

#include "base/clock.hpp"
#include "transport/tcp/pace.hpp"

namespace ringcore::transport {
namespace {

constexpr int kPatience = SocketAnswers::kPatience;

TEST_CASE("answers: have ceased when nothing that is under way was acknowledged for so many looks") {
  SocketAnswers answers;
  CHECK_FALSE(answers.have_ceased({.acknowledged = 5, .is_under_way = true}));
  for (int look = 1; look < kPatience; ++look)
    CHECK_FALSE(answers.have_ceased({.acknowledged = 5, .is_under_way = true}));
  CHECK(answers.have_ceased({.acknowledged = 5, .is_under_way = true}));
}

TEST_CASE("answers: each of them, and each time that nothing is under way, begins the count anew") {
  SocketAnswers answers;
  for (const SocketAnswers::Sent sent : {SocketAnswers::Sent{.acknowledged = 6, .is_under_way = true},
                                         SocketAnswers::Sent{.acknowledged = 5, .is_under_way = false}}) {
    for (int look = 1; look < kPatience; ++look)
      CHECK_FALSE(answers.have_ceased({.acknowledged = 5, .is_under_way = true}));
    CHECK_FALSE(answers.have_ceased(sent));
    CHECK_FALSE(answers.have_ceased({.acknowledged = 5, .is_under_way = true}));
  }
}

TEST_CASE("answers: a look needs time since the last one, so a machine that stood still is one look older") {
  SocketAnswers answers;
  const Nanoseconds begin = 1000 * kSecond;
  CHECK(answers.is_due(begin));
  CHECK_FALSE(answers.is_due(begin + SocketAnswers::kInterval - 1));
  CHECK(answers.is_due(begin + 100 * SocketAnswers::kInterval));
  CHECK_FALSE(answers.is_due(begin + 100 * SocketAnswers::kInterval + 1));
}

}  // namespace
}  // namespace ringcore::transport
