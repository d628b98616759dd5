#include <doctest/doctest.h>

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "link_fixtures.hpp"
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

  void match(Kind& kind) {
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

class PostboxLibrary final : public transport::MpiLibrary {
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
  int size(MpiComm) override { return 2; }
  MpiComm duplicate(MpiComm, const std::function<void()>&) override { return ++comms_; }

  std::string version() override { return "postbox"; }
  bool initialized() override { return true; }
  bool finalized() override { return false; }
  void initialize() override {}
  void finalize() override {}
  transport::MpiThreads threads() override { return transport::MpiThreads::kMultiple; }
  MpiComm world() override { return 0; }
  MpiComm from_fortran(int) override { return 0; }
  bool can_reduce(DType, ReduceOp) override { return false; }
  MpiRequest allreduce(MpiComm, std::byte*, std::size_t, DType, ReduceOp) override { return no_collectives(); }
  MpiRequest reduce_scatter(MpiComm, const std::byte*, std::byte*, std::span<const int>, DType, ReduceOp) override {
    return no_collectives();
  }
  MpiRequest broadcast(MpiComm, std::byte*, std::size_t, int) override { return no_collectives(); }
  MpiRequest allgather(MpiComm, std::byte*, std::span<const int>, std::span<const int>) override {
    return no_collectives();
  }

  bool broken = false;

 private:
  static MpiRequest no_collectives() { throw std::runtime_error("only messages"); }

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

TEST_CASE("mpi: an error of MPI is the end of the link") {
  MpiPair pair;
  const auto link = pair.link(0);
  pair.libraries[0].broken = true;
  const std::vector<std::byte> bytes(100);
  CHECK(link->write(1, bytes) == 0);
  CHECK(link->failure() == "cannot be reached over MPI: MPI_Isend: the process has failed");
  CHECK(link->arm());
  CHECK_FALSE(link->arm());
  CHECK(link->write(1, bytes) == 0);
}

}  // namespace ringcore::test
