// One rank that runs the plan of one generator over TCP: what simulations are compared with.
//
//   ringcore_network GENERATOR PARTS BYTES RUNS RANK RANKS_OF_A_HOST PORT ADDRESS...
//
// An address for each host. Prints a JSON line: the seconds of each allreduce on this rank, which all ranks begin together.
// Connections are not authenticated: this is for networks of a benchmark's own.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/owned.hpp"
#include "carriers/plans/executor.hpp"
#include "plan/generator.hpp"
#include "transport/tcp/link.hpp"

namespace {

using namespace ringcore;
using transport::Link;

constexpr auto kStartLimit = std::chrono::seconds(30);

struct Job {
  Rank rank = 0;
  int local = 1;
  int port = 0;
  std::vector<std::string> addresses;
  int ranks() const { return static_cast<int>(addresses.size()) * local; }
};

sockaddr_in endpoint(const Job& job, Rank rank) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(job.port + rank));
  if (inet_pton(AF_INET, job.addresses[rank / job.local].c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error("no address");
  }
  return address;
}

Fd listen_here(const Job& job) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in address = endpoint(job, job.rank);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.get(), 1024) != 0) {
    throw std::runtime_error("cannot listen");
  }
  return listener;
}

// Peers may not listen yet.
Fd dial(const Job& job, Rank peer, std::int32_t lane) {
  const auto until = std::chrono::steady_clock::now() + kStartLimit;
  const sockaddr_in address = endpoint(job, peer);
  while (std::chrono::steady_clock::now() < until) {
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      const std::int32_t hello[2] = {job.rank, lane};
      if (::write(socket.get(), hello, sizeof(hello)) != sizeof(hello)) break;
      return socket;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw std::runtime_error("rank " + std::to_string(peer) + " does not answer");
}

// Sockets of every peer, a lane each, and behind them one to rank 0 to begin together.
using Sockets = std::map<Rank, std::vector<Fd>>;

Sockets connect(const Job& job, const Fd& listener, const std::vector<Rank>& peers) {
  Sockets sockets;
  std::size_t expected = 0;
  for (const Rank peer : peers) {
    sockets[peer].resize(transport::kLaneCount);
    if (peer > job.rank) expected += transport::kLaneCount;
    for (int lane = 0; peer < job.rank && lane < transport::kLaneCount; ++lane) {
      sockets[peer][static_cast<std::size_t>(lane)] = dial(job, peer, lane);
    }
  }
  std::vector<Fd> meeting(1);
  if (job.rank == 0) {
    expected += static_cast<std::size_t>(job.ranks() - 1);
  } else {
    meeting[0] = dial(job, 0, transport::kLaneCount);
  }
  for (; expected > 0; --expected) {
    Fd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::int32_t hello[2] = {};
    if (::recv(accepted.get(), hello, sizeof(hello), MSG_WAITALL) != sizeof(hello)) throw std::runtime_error("hello");
    if (hello[1] == transport::kLaneCount) {
      meeting.push_back(std::move(accepted));
    } else {
      sockets.at(hello[0]).at(static_cast<std::size_t>(hello[1])) = std::move(accepted);
    }
  }
  sockets[job.rank] = std::move(meeting);
  return sockets;
}

// All say that they are there, then all are told.
void meet(const std::vector<Fd>& meeting) {
  char byte = 0;
  const auto take = [&](const Fd& socket) {
    if (::read(socket.get(), &byte, 1) != 1) throw std::runtime_error("a rank is gone");
  };
  const auto give = [&](const Fd& socket) {
    if (::write(socket.get(), &byte, 1) != 1) throw std::runtime_error("a rank is gone");
  };
  if (meeting[0]) {
    give(meeting[0]);
    return take(meeting[0]);
  }
  for (std::size_t i = 1; i < meeting.size(); ++i) take(meeting[i]);
  for (std::size_t i = 1; i < meeting.size(); ++i) give(meeting[i]);
}

void drive(plan::Run& run, const std::vector<Link*>& links) {
  while (!run.done()) {
    if (run.progress()) continue;
    bool arrived = false;
    std::vector<pollfd> fds;
    for (Link* const link : links) {
      arrived = link->arm() || arrived;
      link->add_wait_fds(fds);
      if (const auto failure = link->failure()) throw std::runtime_error(*failure);
    }
    if (!arrived) ::poll(fds.data(), fds.size(), 1000);
    for (Link* const link : links) link->disarm();
  }
}

void measure(const Job& job, const char* name, int parts, std::size_t count, int runs) {
  plan::Topology topology;
  for (Rank rank = 0; rank < job.ranks(); ++rank) topology.host_of.push_back(rank / job.local);
  const plan::PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology, .parts = parts};
  const auto plan = plan::generator(name).generate(request, job.rank);
  if (!plan) throw std::runtime_error("there is no such plan");
  const Fd listener = listen_here(job);
  Sockets sockets = connect(job, listener, plan->neighbours());
  const std::vector<Fd> meeting = std::move(sockets[job.rank]);
  std::vector<std::unique_ptr<Link>> owned;
  std::vector<Link*> links;
  std::vector<Link*> by_rank(static_cast<std::size_t>(job.ranks()), nullptr);
  for (const Rank peer : plan->neighbours()) {
    owned.push_back(transport::make_tcp_link(job.rank, peer, std::move(sockets[peer])));
    links.push_back(by_rank[static_cast<std::size_t>(peer)] = owned.back().get());
  }
  std::vector<float> data(count);
  plan::Operands operands{.dtype = DType::kFloat32, .op = ReduceOp::kSum};
  operands.data_layout = plan::Layout::even(count, plan->chunks);
  operands.data = reinterpret_cast<std::byte*>(data.data());
  std::vector<float> scratch(operands.data_layout.largest() * plan->scratch_chunks);
  operands.scratch = reinterpret_cast<std::byte*>(scratch.data());
  std::string seconds;
  for (int i = 0; i < runs; ++i) {
    std::fill(data.begin(), data.end(), static_cast<float>(job.rank + 1));
    meet(meeting);
    const auto begin = std::chrono::steady_clock::now();
    carriers::PlanRun run(*plan, operands, by_rank, transport::kFirstDataLane, static_cast<std::uint32_t>(i + 1));
    drive(run, links);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const float sum = static_cast<float>(job.ranks()) * static_cast<float>(job.ranks() + 1) / 2;
    if (std::any_of(data.begin(), data.end(), [&](float each) { return each != sum; })) {
      throw std::runtime_error("a sum is wrong");
    }
    seconds += (i == 0 ? "" : ", ") + std::to_string(took.count());
  }
  meet(meeting);
  std::printf("{\"rank\": %d, \"seconds\": [%s]}\n", job.rank, seconds.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 9) {
    std::fputs("usage: ringcore_network GENERATOR PARTS BYTES RUNS RANK RANKS_OF_A_HOST PORT ADDRESS...\n", stderr);
    return 2;
  }
  const Job job{.rank = std::atoi(argv[5]),
                .local = std::atoi(argv[6]),
                .port = std::atoi(argv[7]),
                .addresses = std::vector<std::string>(argv + 8, argv + argc)};
  try {
    measure(job, argv[1], std::atoi(argv[2]), std::strtoull(argv[3], nullptr, 10) / sizeof(float), std::atoi(argv[4]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", job.rank, error.what());
    return 1;
  }
}
