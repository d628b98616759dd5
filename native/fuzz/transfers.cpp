// Transfers on a lane of data, in every state of a run: their headers and payloads come from peers that have gone mad.
#include <array>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "carriers/plans/executor.hpp"
#include "fuzz/target.hpp"
#include "plan/generator.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::fuzz {
namespace {

constexpr int kRanks = 3;
constexpr int kLane = transport::kFirstDataLane;
constexpr std::uint32_t kRun = 7;

// The run of rank 0, in memory of just the size that it needs.
struct Victim {
  Victim(const plan::Plan& plan, std::size_t count, std::span<transport::Link* const> links)
      : data(count * sizeof(float)),
        input(count * sizeof(float)),
        run(plan, operands(plan, count), links, kLane, kRun) {}

  std::vector<std::byte> data;
  std::vector<std::byte> input;
  std::vector<std::byte> scratch;
  carriers::PlanRun run;

 private:
  plan::Operands operands(const plan::Plan& plan, std::size_t count) {
    plan::Operands all{.dtype = DType::kFloat32, .op = ReduceOp::kSum};
    all.data_layout = all.input_layout = plan::Layout::even(count, plan.chunks);
    scratch.resize(plan.scratch_chunks * all.data_layout.largest() * sizeof(float));
    all.data = data.data();
    all.input = input.data();
    all.scratch = scratch.data();
    return all;
  }
};

std::optional<plan::Plan> some_plan(const plan::Topology& topology, Input& bytes) {
  const auto& all = plan::generators();
  plan::PlanRequest request{.collective = static_cast<Collective>(bytes.below(kCollectiveCount - 1)),
                            .topology = &topology,
                            .root = static_cast<Rank>(bytes.below(kRanks)),
                            .parts = 1 + static_cast<int>(bytes.below(3))};
  if (request.collective == Collective::kAllreduce) {
    request.compression = static_cast<Compression>(bytes.below(kCompressionCount));
  }
  return all[bytes.below(all.size())]->generate(request, 0);
}

// A header that fits now and then.
carriers::TransferHeader some_header(Input& bytes, std::size_t chunk_bytes) {
  carriers::TransferHeader header{.run = kRun, .bytes = chunk_bytes};
  switch (bytes.below(8)) {
    case 0: header.magic = bytes.take<std::uint32_t>(); break;
    case 1: header.run = bytes.below(4); break;
    case 2: header.bytes = bytes.take<std::uint64_t>() >> bytes.below(64); break;
    case 3: header.bytes = 0; break;
    default: break;
  }
  return header;
}

void act(transport::SimNetwork& network, Victim& victim, std::span<transport::Link* const> links, Input& bytes,
         std::size_t chunk_bytes) {
  const auto peer = static_cast<Rank>(1 + bytes.below(kRanks - 1));
  switch (bytes.below(5)) {
    case 0: {
      const carriers::TransferHeader header = some_header(bytes, chunk_bytes);
      network.inject(peer, 0, kLane, std::as_bytes(std::span(&header, 1)));
      [[fallthrough]];
    }
    case 1: {
      std::vector<std::byte> payload(bytes.take<std::uint8_t>() % (chunk_bytes + 1));
      network.inject(peer, 0, kLane, payload);
      break;
    }
    case 2: network.inject(peer, 0, kLane, bytes.piece(bytes.below(32))); break;
    case 3: carriers::set_aside(*links[static_cast<std::size_t>(peer)], kLane, peer); break;
    default: victim.run.hold(bytes.flip()); break;
  }
  while (network.step()) {
  }
  while (!victim.run.done() && victim.run.progress()) {
  }
}

}  // namespace

void transfers(Bytes input) {
  Input bytes(input);
  const plan::Topology topology{.host_of = {0, 1, 2}};
  const auto plan = some_plan(topology, bytes);
  if (!plan || plan->nodes != kRanks) return;
  transport::SimNetwork network(kRanks, 1, {.lane_bytes = 1 << 16});
  const std::array<std::unique_ptr<transport::Link>, kRanks> owned = {nullptr, network.link(0, 1), network.link(0, 2)};
  const std::vector<transport::Link*> links = {nullptr, owned[1].get(), owned[2].get()};
  const std::size_t count = 1 + bytes.below(64);
  const std::size_t chunk_bytes = plan::Layout::even(count, plan->chunks).largest() * sizeof(float);
  Victim victim(*plan, count, links);
  try {
    for (int events = 0; events < 100 && !bytes.empty(); ++events) act(network, victim, links, bytes, chunk_bytes);
    require(!victim.run.waiting_for().empty() || victim.run.done() || victim.run.sending(),
            "it says what it waits for");
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kProtocol, "what cannot be read is an error of the protocol");
  }
}

}  // namespace ringcore::fuzz
