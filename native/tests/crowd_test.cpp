#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include <sched.h>

#include "link_fixtures.hpp"
#include "temporary_folder.hpp"
#include "transport/crowd.hpp"
#include "transport/sim/network.hpp"
#include "transport/waiter.hpp"

using namespace ringcore;
using namespace ringcore::transport;

namespace {

// What Linux tells of control groups, in a folder of its own.
class Groups {
 public:
  void limit(const std::string& group, const std::string& cpu_max) const {
    std::filesystem::create_directories(folder_.path() / "mounted" / group);
    std::ofstream(folder_.path() / "mounted" / group / "cpu.max") << cpu_max << '\n';
  }
  std::optional<int> quota(const std::string& own) const {
    std::ofstream(folder_.path() / "cgroup") << own;
    return processor_quota(folder_.path() / "mounted", folder_.path() / "cgroup");
  }

 private:
  testing::TemporaryFolder folder_;
};

// Binds the calling thread to one of the processors that it may use, and back in the end.
class Bound {
 public:
  explicit Bound(int processor) {
    REQUIRE(::sched_getaffinity(0, sizeof(before_), &before_) == 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    REQUIRE(::sched_setaffinity(0, sizeof(one), &one) == 0);
  }
  ~Bound() { ::sched_setaffinity(0, sizeof(before_), &before_); }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  cpu_set_t before_;
};

// Those that this process may use.
std::vector<int> usable() {
  const Processors allowed = allowed_processors();
  std::vector<int> found;
  for (std::size_t i = 0; i < allowed.size() * 64; ++i) {
    if ((allowed[i / 64] >> (i % 64) & 1) != 0) found.push_back(static_cast<int>(i));
  }
  return found;
}

// Two ranks of a host, in one process.
struct Pair {
  test::ShmPair shm;
  std::array<std::unique_ptr<Link>, 2> links{shm.link(0), shm.link(1)};
  std::array<Crowd, 2> crowds{Crowd(2, std::nullopt), Crowd(2, std::nullopt)};

  void meet(int rank) {
    Link* const link = links[static_cast<std::size_t>(rank)].get();
    crowds[static_cast<std::size_t>(rank)].meet({&link, 1});
  }
};

}  // namespace

TEST_CASE("the quota of a process is the least of its groups'") {
  const Groups groups;
  CHECK(!groups.quota("0::/\n"));
  groups.limit("", "max 100000");
  CHECK(!groups.quota("0::/\n"));
  groups.limit("pods", "350000 100000");
  groups.limit("pods/mine", "50000 100000");
  groups.limit("others", "100000 100000");
  CHECK(groups.quota("0::/pods\n") == 4);
  CHECK(groups.quota("1:name=systemd:/others\n0::/pods/mine\n") == 1);
  CHECK(groups.quota("0::/pods/theirs\n") == 4);
  CHECK(!groups.quota("4:cpu:/pods\n"));
}

TEST_CASE("ranks that are bound to one processor each do not share it; those on one do, whenever they came there") {
  const std::vector<int> processors = usable();
  REQUIRE(!processors.empty());
  Pair pair;
  {
    const Bound here(processors.front());
    pair.meet(0);
    pair.meet(1);
    pair.crowds[0].count_processors();
    // Both are bound to the same one.
    CHECK(pair.crowds[1].shares_processor());
    CHECK(pair.crowds[0].shares_processor());
  }
  // Where there is only one, it is always shared.
  const bool alone = processors.size() == 1;
  {
    const Bound here(processors.back());
    pair.crowds[1].count_processors();
    pair.crowds[1].shares_processor();
    CHECK(pair.crowds[1].shares_processor() == alone);
  }
  {
    const Bound here(processors.front());
    pair.crowds[0].count_processors();
    CHECK(pair.crowds[0].shares_processor() == alone);
    // The other one comes, without a word about what it may use.
    pair.crowds[1].shares_processor();
    CHECK(pair.crowds[0].shares_processor());
  }
}

TEST_CASE("a quota of one processor is shared by two ranks") {
  Pair pair;
  Crowd limited(2, 1);
  Link* const link = pair.links[0].get();
  limited.meet({&link, 1});
  CHECK(limited.shares_processor());
}

TEST_CASE("a ring tells when it was rung") {
  Pair pair;
  pair.meet(0);
  const Nanoseconds before = SteadyClock().now();
  CHECK(!pair.crowds[0].rung_since(before));
  pair.links[0]->arm();
  const std::array<std::byte, 8> word{};
  REQUIRE(pair.links[1]->write(transport::kControlLane, word) == word.size());
  const auto rung = pair.crowds[0].rung_since(before);
  REQUIRE(rung);
  CHECK(*rung <= SteadyClock().now());
}

TEST_CASE("a thread stays awake for as long as two wake-ups take, within bounds") {
  constexpr Nanoseconds kSpin = 100'000;
  Waiter waiter(kSpin);
  const VirtualClock clock;
  const auto awake = [&](bool shares) {
    waiter.begin();
    Nanoseconds now = 1;
    while (waiter.stay_awake(clock, now, shares)) now += 10'000;
    return now;
  };
  const auto near = [](Nanoseconds value, Nanoseconds expected) {
    return value >= expected && value < expected * 5 / 4;
  };
  CHECK(near(awake(false), kSpin));
  for (int i = 0; i < 100; ++i) waiter.note_wake(5 * kSpin);
  CHECK(near(awake(false), 10 * kSpin));
  for (int i = 0; i < 100; ++i) waiter.note_wake(kSecond);
  CHECK(near(awake(false), 20 * kSpin));
  for (int i = 0; i < 100; ++i) waiter.note_wake(1000);
  CHECK(near(awake(false), kSpin));
}

TEST_CASE("on a shared core a thread stays awake for twice as long as such waits have taken, within bounds") {
  constexpr Nanoseconds kSpin = 100'000;
  Waiter waiter(kSpin);
  VirtualClock clock;
  const auto awake = [&](Nanoseconds moves_after) {
    waiter.begin();
    const Nanoseconds began = clock.now();
    while (clock.now() < began + moves_after && waiter.stay_awake(clock, clock.now(), true)) {
      clock.set(clock.now() + 1000);
    }
    const Nanoseconds took = clock.now() - began;
    clock.set(began + moves_after);
    waiter.active(clock);
    return took;
  };
  CHECK(awake(kSecond) == 2 * kSpin);
  CHECK_MESSAGE(awake(kSecond) == 2 * kSpin, "for what takes so long nobody stays awake longer, nor less");
  for (int i = 0; i < 100; ++i) waiter.note_wait(1000);
  CHECK(awake(kSecond) == kSpin / 4);
  for (int i = 0; i < 100; ++i) awake(kSpin / 2);  // It wakes to find that it could have stayed awake.
  CHECK(awake(kSecond) > 9 * kSpin / 10);
  CHECK(awake(kSecond) <= kSpin);
}

TEST_CASE("whoever gets a core back late twice sleeps at once for a while, and then tries again") {
  constexpr Nanoseconds kSpin = 100'000;
  constexpr Nanoseconds kTurn = 30 * kSpin;
  Waiter waiter(kSpin);
  const VirtualClock clock;
  const auto yields = [&](Nanoseconds now, bool shares = true) {
    waiter.begin();
    return waiter.stay_awake(clock, now, shares);
  };
  const auto late = [&](Nanoseconds end) { waiter.note_yield(end - kTurn, end); };
  waiter.note_yield(0, 9 * kSpin);
  waiter.note_yield(9 * kSpin, 18 * kSpin);
  CHECK_MESSAGE(yields(18 * kSpin), "other ranks that wait as well take so long");
  late(kSecond);
  CHECK_MESSAGE(yields(kSecond), "once is nothing");
  late(2 * kSecond);
  CHECK_MESSAGE(yields(2 * kSecond), "nor is once a second");
  const Nanoseconds second = 2 * kSecond + 2 * kTurn;
  late(second);
  CHECK(!yields(second));
  CHECK_MESSAGE(yields(second, false), "a core of its own it need not give away");
  CHECK(!yields(second + 19 * kTurn));
  CHECK(yields(second + 20 * kTurn));
  late(second + 22 * kTurn);
  CHECK_MESSAGE(!yields(second + 22 * kTurn), "what was so before is believed at once");
  waiter.note_yield(second + 50 * kTurn, second + 50 * kTurn + 600 * kSecond);
  CHECK_MESSAGE(yields(second + 50 * kTurn + 603 * kSecond), "who was stopped tries again soon");
}
