#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "carriers/plans/executor.hpp"
#include "fuzz/messages_only.hpp"
#include "link_fixtures.hpp"
#include "plan/planner.hpp"
#include "transport/mpi/world.hpp"

namespace ringcore::test {
namespace {

using transport::MpiComm;
using transport::MpiRequest;

// The messages between the ranks of one process, by MPI's rules: matched in order, those of a kind (a communicator, a
// pair, a tag); a small one is taken at once, a large or synchronous one when it is received. The real libraries are
// tested between processes, by the conformance suite.
struct Postbox {
  struct Message {
    std::vector<std::byte> bytes;
    MpiRequest sender = 0;  // whose request ends when it is matched; 0: it has ended
  };
  struct Receive {
    std::span<std::byte> room;
    MpiRequest request = 0;
  };
  struct Kind {
    std::deque<Message> messages;
    std::deque<Receive> receives;
  };
  using Key = std::tuple<MpiComm, int, int, int>;  // communicator, from, to, tag

  std::mutex mutex;  // Guards: everything below.
  std::map<Key, Kind> kinds;
  std::map<MpiRequest, std::optional<std::size_t>> requests;
  MpiRequest next = 1;
  Nanoseconds busy_until = 0;  // the receivers compute, and call nothing of MPI

  std::ptrdiff_t unfinished() const {
    return std::count_if(requests.begin(), requests.end(), [](const auto& item) { return !item.second; });
  }

  void match(Kind& kind) {
    if (SteadyClock().now() < busy_until) return;
    while (!kind.messages.empty() && !kind.receives.empty()) {
      const Message& message = kind.messages.front();
      const Receive& receive = kind.receives.front();
      if (message.bytes.size() > receive.room.size()) throw std::runtime_error("MPI_Irecv: message truncated");
      std::copy(message.bytes.begin(), message.bytes.end(), receive.room.begin());
      requests[receive.request] = message.bytes.size();
      if (message.sender != 0) requests[message.sender] = 0;
      kind.messages.pop_front();
      kind.receives.pop_front();
    }
  }
};

class PostboxLibrary final : public fuzz::MessagesOnly {
 public:
  PostboxLibrary(Postbox& box, int rank) : box_(box), rank_(rank) {}
  static constexpr std::size_t kEagerBytes = 4096;

  MpiRequest send(MpiComm comm, int peer, int tag, std::span<const std::byte> bytes, bool synchronous) override {
    const std::lock_guard lock(box_.mutex);
    if (broken) throw std::runtime_error("MPI_Isend: the process has failed");
    const bool taken = !synchronous && bytes.size() <= kEagerBytes;
    const MpiRequest request = box_.next++;
    if (taken) {
      box_.requests[request] = 0;
    } else {
      box_.requests[request] = std::nullopt;
    }
    Postbox::Kind& kind = box_.kinds[{comm, rank_, peer, tag}];
    kind.messages.push_back({{bytes.begin(), bytes.end()}, taken ? 0 : request});
    box_.match(kind);
    return request;
  }

  MpiRequest receive(MpiComm comm, int peer, int tag, std::span<std::byte> room) override {
    const std::lock_guard lock(box_.mutex);
    const MpiRequest request = box_.next++;
    box_.requests[request] = std::nullopt;
    Postbox::Kind& kind = box_.kinds[{comm, peer, rank_, tag}];
    kind.receives.push_back({room, request});
    box_.match(kind);
    return request;
  }

  std::optional<std::size_t> test(MpiRequest& request) override {
    const std::lock_guard lock(box_.mutex);
    if (box_.busy_until != 0) {
      for (auto& [key, kind] : box_.kinds) box_.match(kind);
    }
    const auto found = box_.requests.find(request);
    if (!found->second) return std::nullopt;
    const std::size_t bytes = *found->second;
    box_.requests.erase(found);
    return bytes;
  }

  void cancel(MpiRequest& request) override {
    const std::lock_guard lock(box_.mutex);
    for (auto& [key, kind] : box_.kinds) {
      const auto found = std::find_if(kind.receives.begin(), kind.receives.end(),
                                      [&](const auto& receive) { return receive.request == request; });
      if (found == kind.receives.end()) continue;
      kind.receives.erase(found);
      box_.requests[request] = 0;
      return;
    }
  }

  int rank(MpiComm) override { return rank_; }
  MpiComm duplicate(MpiComm, const std::function<void()>&) override { return ++comms_; }

  // The others never come.
  MpiRequest allgather(MpiComm, std::byte* data, std::span<const int> bytes, std::span<const int> offsets) override {
    const std::lock_guard lock(box_.mutex);
    gathering = {data + offsets[0], static_cast<std::size_t>(bytes[0])};
    box_.requests[box_.next] = std::nullopt;
    return box_.next++;
  }

  bool broken = false;
  std::span<std::byte> gathering;  // what MPI may write to

 private:
  Postbox& box_;
  int rank_;
  MpiComm comms_ = 0;
};

// Two ranks whose links may be driven by a thread each.
struct MpiPair {
  Postbox box;
  PostboxLibrary libraries[2] = {{box, 0}, {box, 1}};
  std::unique_ptr<Link> link(Rank self) {
    auto world = std::make_shared<transport::MpiWorld>(libraries[self], 0, kSecond);
    return transport::make_mpi_link(std::move(world), 1 - self);
  }
};

constexpr plan::Query kSum{
    .collective = Collective::kAllreduce, .bytes = 1 << 20, .dtype = DType::kFloat32, .op = ReduceOp::kSum};

// One rank's part of a sum over both.
struct Sum {
  Sum(const plan::Plan& plan, std::vector<transport::Link*> links, int set, std::size_t count)
      : data(count, static_cast<float>(1 + plan.self + 10 * set)),
        links(std::move(links)),
        run(plan, operands(plan), this->links, 1, static_cast<std::uint32_t>(1 + set), set) {}
  bool right(int set) const {
    const auto total = static_cast<float>(3 + 20 * set);
    return std::all_of(data.begin(), data.end(), [&](float value) { return value == total; });
  }

  std::vector<float> data;
  std::vector<std::byte> scratch;
  std::vector<transport::Link*> links;
  carriers::PlanRun run;

 private:
  plan::Operands operands(const plan::Plan& plan) {
    plan::Operands found{.dtype = DType::kFloat32, .op = ReduceOp::kSum};
    found.data_layout = plan::Layout::even(data.size(), plan.chunks);
    scratch.resize(plan.scratch_chunks * found.data_layout.largest() * sizeof(float));
    found.data = reinterpret_cast<std::byte*>(data.data());
    found.scratch = scratch.data();
    return found;
  }
};

}  // namespace

TEST_CASE("mpi: streams in both directions through every lane") {
  MpiPair pair;
  const auto first = pair.link(0);
  const auto second = pair.link(1);
  CHECK(first->transport() == "mpi");
  bool right = false;
  std::thread other([&] { right = exchange_streams(*second, 1, 1'000'000, 5); });
  CHECK(exchange_streams(*first, 0, 1'000'000, 5));
  other.join();
  CHECK(right);
}

TEST_CASE("mpi: the longest record is contiguous, behind the rest of another") {
  MpiPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  std::vector<std::byte> record(Link::kMaxContiguous);
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < record.size(); ++i) record[i] = stream_byte(round, 0, i);
    const std::size_t first = 1 + static_cast<std::size_t>(round) * 3001;
    for (const std::size_t size : {first, record.size()}) {
      for (std::size_t sent = 0; sent < size;) {
        const std::size_t piece = std::min<std::size_t>(size - sent, 20'000);
        sent += sender->write(0, std::span(record).subspan(sent, piece));
        receiver->peek(0);
      }
    }
    while (receiver->peek(0).size() < first) sleep_on(*receiver);
    receiver->consume(0, first);
    while (receiver->peek(0).size() < record.size()) sleep_on(*receiver);
    CHECK(std::memcmp(receiver->peek(0).data(), record.data(), record.size()) == 0);
    receiver->consume(0, record.size());
  }
}

TEST_CASE("mpi: a receiver that takes nothing is not buried in messages") {
  MpiPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  const std::vector<std::byte> bytes(100);
  std::size_t sent = 0;
  while (const std::size_t taken = sender->write(2, bytes)) sent += taken;
  CHECK(sent <= 100 * 20);
  CHECK(sender->blocked());
  std::vector<std::byte> out(1 << 20);
  for (std::size_t got = 0; got < sent;) got += receiver->read(2, out);
  CHECK(sender->arm());  // tells of the room
  CHECK_FALSE(sender->blocked());
  CHECK(sender->write(2, bytes) == 100);
  // What nobody takes is told once.
  while (!receiver->arm()) {
  }
  CHECK_FALSE(receiver->arm());
  CHECK(receiver->read(2, out) == 100);
}

TEST_CASE("mpi: naps grow with the time that nothing comes, and nothing that is being sent waits for long") {
  MpiPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  CHECK(sender->longest_nap(true) <= kMillisecond);
  CHECK(sender->longest_nap(false) >= kSecond);
  const std::vector<std::byte> large(100'000);
  CHECK(sender->write(1, large) == large.size());
  CHECK(sender->longest_nap(false) <= kMillisecond);
  std::vector<std::byte> out(large.size());
  for (std::size_t got = 0; got < out.size();) got += receiver->read(1, std::span(out).subspan(got));
  CHECK(sender->longest_nap(false) >= kSecond);
}

TEST_CASE("mpi: plans send from memory to memory, and those of other process sets are not in the way") {
  for (const std::size_t count : {std::size_t{1}, std::size_t{5'001}, std::size_t{900'001}}) {
    MpiPair pair;
    const std::unique_ptr<Link> links[2] = {pair.link(0), pair.link(1)};
    plan::Planner planners[2] = {{{.host_of = {0, 1}}, 0, {}}, {{.host_of = {0, 1}}, 1, {}}};
    const std::vector<plan::Planner::Candidate> plans[2] = {planners[0].candidates(kSum, {}, 100, SIZE_MAX),
                                                            planners[1].candidates(kSum, {}, 100, SIZE_MAX)};
    for (std::size_t i = 0; i < plans[0].size(); ++i) {
      std::vector<std::unique_ptr<Sum>> sums[2];
      for (Rank r = 0; r < 2; ++r) {
        std::vector<Link*> peers(2);
        peers[1 - r] = links[r].get();
        for (int set = 0; set < 2; ++set)
          sums[r].push_back(std::make_unique<Sum>(*plans[r][i].plan, peers, set, count));
      }
      // The ranks come to them in different orders.
      sums[0][0]->run.progress();
      sums[1][1]->run.progress();
      if (count > 1) CHECK(sums[0][0]->run.in_use());
      bool moved = true;
      while (moved) {
        moved = false;
        for (int set = 0; set < 2; ++set) {
          for (Rank r = 0; r < 2; ++r) moved = sums[r][set]->run.progress() || moved;
        }
      }
      for (Rank r = 0; r < 2; ++r) {
        for (int set = 0; set < 2; ++set) {
          CAPTURE(plans[r][i].plan->generator);
          CHECK(sums[r][set]->run.done());
          CHECK_FALSE(sums[r][set]->run.in_use());
          CHECK(sums[r][set]->right(set));
        }
      }
    }
  }
}

TEST_CASE("mpi: a record in several messages is one record") {
  MpiPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  std::vector<std::byte> record(Link::kMaxContiguous);
  for (std::size_t i = 0; i < record.size(); ++i) record[i] = stream_byte(0, 0, i);
  for (const std::size_t size : {std::size_t{80}, std::size_t{4'000}, std::size_t{4'160}, std::size_t{8'192},
                                 std::size_t{8'193}, record.size()}) {
    const std::span<const std::byte> bytes = std::span(record).first(size);
    CHECK(sender->write(0, bytes.first(80), bytes.subspan(80)) == size);
    while (receiver->peek(0).size() < size) {
    }
    CHECK(std::memcmp(receiver->peek(0).data(), record.data(), size) == 0);
    receiver->consume(0, size);
  }
}

TEST_CASE("mpi: records that came before anybody looked, the second one in two messages") {
  MpiPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  std::vector<std::byte> record(8'000);
  for (std::size_t i = 0; i < record.size(); ++i) record[i] = stream_byte(0, 0, i);
  for (int round = 0; round < 3; ++round) {
    CHECK(sender->write(0, std::span(record).first(80)) == 80);
    CHECK(sender->write(0, record) == record.size());
    CHECK(receiver->peek(0).size() == 80);
    receiver->consume(0, 80);
    // Each look has one message more, once there is a receive for it.
    for (int look = 0; look < 3 && receiver->peek(0).size() < record.size(); ++look) {
    }
    REQUIRE(receiver->peek(0).size() == record.size());
    CHECK(std::memcmp(receiver->peek(0).data(), record.data(), record.size()) == 0);
    receiver->consume(0, record.size());
    CHECK(receiver->peek(0).empty());
  }
}

TEST_CASE("mpi: what comes after all receives were used is noticed before a nap") {
  MpiPair pair;
  const auto sender = pair.link(0);
  const auto receiver = pair.link(1);
  CHECK(receiver->peek(1).empty());  // posts the receives
  const std::vector<std::byte> message(64);
  for (int i = 0; i < 5; ++i) CHECK(sender->write(1, message) == message.size());
  for (int i = 0; i < 4; ++i) {
    CHECK(receiver->peek(1).size() == message.size());
    receiver->consume(1, message.size());
  }
  CHECK(receiver->arm());  // posts them again
}

// In processes of their own: a process that has given MPI up does so for good.

TEST_CASE("mpi: a peer that computes while this rank leaves is waited for") {
  Child child([] {
    MpiPair pair;
    const auto receiver = pair.link(1);
    auto sender = pair.link(0);
    pair.box.busy_until = SteadyClock().now() + kSecond;
    const std::vector<std::byte> bytes(20'000);
    if (sender->write(0, bytes) != bytes.size()) return false;
    sender.reset();
    return !transport::MpiWorld::abandoned() && receiver->peek(0).size() == bytes.size();
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("mpi: after a lost rank no link waits") {
  Child child([] {
    ::alarm(kHangMilliseconds / 1000);
    std::deque<MpiPair> pairs(10);
    std::vector<std::unique_ptr<Link>> links;
    const std::vector<std::byte> bytes(20'000);
    for (MpiPair& pair : pairs) {
      pair.box.busy_until = INT64_MAX;
      links.push_back(pair.link(0));
      if (links.back()->write(0, bytes) != bytes.size()) return false;
    }
    transport::MpiWorld::abandon();
    links.clear();
    return true;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("mpi: what a link that closes would still receive is taken back") {
  Child child([] {
    MpiPair pair;
    auto link = pair.link(0);
    std::vector<std::byte> room(100);
    link->receive_message(1, 0, room);
    link.reset();
    return !transport::MpiWorld::abandoned() && pair.box.unfinished() == 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("mpi: what a rank sends that comes too late to meet the others does no harm") {
  Child child([] {
    MpiPair pair;
    transport::MpiWorld world(pair.libraries[0], 0, kSecond);
    try {
      world.exchange("here", kMillisecond);
    } catch (const Error& error) {
      std::fill(pair.libraries[0].gathering.begin(), pair.libraries[0].gathering.end(), std::byte{1});
      return error.kind() == ErrorKind::kTimeout && transport::MpiWorld::abandoned();
    }
    return false;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("mpi: an error of MPI is the end of the link") {
  Child child([] {
    MpiPair pair;
    const auto link = pair.link(0);
    pair.libraries[0].broken = true;
    const std::vector<std::byte> bytes(100);
    return link->write(1, bytes) == 0 &&
           link->failure() == "cannot be reached over MPI: MPI_Isend: the process has failed" && link->arm() &&
           !link->arm() && link->write(1, bytes) == 0;
  });
  CHECK(child.wait() == 0);
}

}  // namespace ringcore::test
