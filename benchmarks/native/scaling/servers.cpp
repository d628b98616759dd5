#include "servers.hpp"

#include <numeric>

#include "plan/builder.hpp"

namespace ringcore::benchmarks {

plan::Topology separate_hosts(int ranks) {
  plan::Topology topology;
  topology.host_of.resize(static_cast<std::size_t>(ranks));
  std::iota(topology.host_of.begin(), topology.host_of.end(), 0);
  return topology;
}

plan::Plan server_plan(int workers, int servers, int tensors) {
  const plan::Topology topology = separate_hosts(workers + servers);
  const plan::PlanRequest request{.collective = Collective::kAllreduce, .topology = &topology};
  plan::Builder builder("servers", request, static_cast<std::uint32_t>(tensors * servers));
  const auto share = [&](int tensor, int server) { return static_cast<std::uint32_t>(tensor * servers + server); };
  // Everybody begins with another peer, so that not all send to the same one: TCP would share its cable among them.
  for (int worker = 0; worker < workers; ++worker) {
    for (int i = 0; i < tensors * servers; ++i) {
      const int server = (worker * servers / workers + i) % servers;
      builder.send(worker, workers + server, share(i / servers, server));
    }
    for (int i = 0; i < tensors * servers; ++i) {
      const int server = (worker * servers / workers + i) % servers;
      builder.recv(worker, workers + server, share(i / servers, server));
    }
  }
  for (int server = 0; server < servers; ++server) {
    for (int tensor = 0; tensor < tensors; ++tensor) {
      for (int i = 0; i < workers; ++i) {
        const int worker = (server * workers / servers + i) % workers;
        builder.recv_reduce(workers + server, worker, share(tensor, server), i + 1 == workers);
      }
      for (int i = 0; i < workers; ++i) {
        builder.send(workers + server, (server * workers / servers + i) % workers, share(tensor, server));
      }
    }
  }
  return std::move(builder.plan());
}

}  // namespace ringcore::benchmarks
