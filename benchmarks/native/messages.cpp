// What a message costs the processor at its two ends: the smallest exchange that a plan can say, both ranks of it in one
// thread, so that nobody waits and the thread's own time is what the messages have taken.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "carriers/plans/executor.hpp"
#include "cases.hpp"
#include "plan/generator.hpp"
#include "transport/shm/link.hpp"
#include "transport/tcp/link.hpp"

namespace ringcore::benchmarks {
namespace {

using transport::Link;
using Links = std::array<std::unique_ptr<Link>, 2>;

Links shared_memory(const std::array<transport::Segment, 2>& segments) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  Links links;
  for (Rank rank = 0; rank < 2; ++rank) {
    const Rank peer = 1 - rank;
    const auto peers = std::make_shared<transport::Segment>(
        transport::Segment::attach(Fd(::dup(segments[static_cast<std::size_t>(peer)].fd())), peer, 2));
    links[static_cast<std::size_t>(rank)] =
        transport::make_shm_link(rank, peer, segments[static_cast<std::size_t>(rank)], peers, Fd(fds[rank]));
  }
  return links;
}

Links over_loopback() {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), transport::kLaneCount) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0) {
    std::abort();
  }
  std::array<std::vector<Fd>, 2> ends;
  for (int lane = 0; lane < transport::kLaneCount; ++lane) {
    ends[0].emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(ends[0].back().get(), generic, length) != 0) std::abort();
    ends[1].emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  return {transport::make_tcp_link(0, 1, std::move(ends[0])), transport::make_tcp_link(1, 0, std::move(ends[1]))};
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void measure(std::string_view name, const Links& links) {
  constexpr int kRounds = 20'000;
  constexpr std::size_t kCount = 64;
  constexpr int kMessages = 4;  // of an exchange of two ranks: each sends its share, and then the sum of its own
  const plan::Topology topology{.host_of = {0, 1}};
  const plan::PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology};
  const plan::Generator& direct = plan::generator("direct");
  const std::array plans{*direct.generate(request, 0), *direct.generate(request, 1)};
  std::array<std::array<float, kCount>, 2> data{};
  std::array<std::array<float, 2 * kCount>, 2> scratch{};
  double best = 1;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double begin = processor_seconds();
    for (int round = 0; round < kRounds; ++round) {
      std::array<std::unique_ptr<carriers::PlanRun>, 2> runs;
      for (std::size_t rank = 0; rank < 2; ++rank) {
        std::array<Link*, 2> others{};
        others[1 - rank] = links[rank].get();
        plan::Operands operands{.dtype = DType::kFloat32,
                                .op = ReduceOp::kSum,
                                .data_layout = plan::Layout::even(kCount, plans[rank].chunks),
                                .data = reinterpret_cast<std::byte*>(data[rank].data()),
                                .scratch = reinterpret_cast<std::byte*>(scratch[rank].data())};
        runs[rank] =
            std::make_unique<carriers::PlanRun>(plans[rank], std::move(operands), others, transport::kFirstDataLane, 1);
      }
      while (!runs[0]->done() || !runs[1]->done()) {
        runs[0]->progress();
        runs[1]->progress();
      }
    }
    best = std::min(best, (processor_seconds() - begin) / kRounds / kMessages);
  }
  std::printf("{\"case\": \"message\", \"transport\": \"%s\", \"processor_us\": %.2f}\n", name.data(), best * 1e6);
}

}  // namespace

int run_messages() {
  const std::array segments{transport::Segment::create(0, 2, 64 << 20), transport::Segment::create(1, 2, 64 << 20)};
  measure("shm", shared_memory(segments));
  measure("tcp", over_loopback());
  return 0;
}

}  // namespace ringcore::benchmarks
