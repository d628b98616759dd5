// Transfers on a lane of data, in every state of a run: their headers and payloads come from peers that have gone mad, as
// does what arrives as messages, and what peers' memory holds.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "carriers/plans/executor.hpp"
#include "fuzz/target.hpp"
#include "plan/generator.hpp"
#include "transport/sim/forwarding_link.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::fuzz {
namespace {

constexpr int kMostRanks = 5;
constexpr int kLane = transport::kFirstDataLane;
constexpr std::uint32_t kRun = 7;

// Carries messages besides. Each is done when the fuzzer says so, and its memory is used until then.
class MessageLink final : public transport::ForwardingLink {
 public:
  using ForwardingLink::ForwardingLink;

  bool has_messages() const override { return true; }
  Message send_message(int, int, std::span<const std::byte> bytes) override {
    messages_.push_back({.leaves = bytes});
    return messages_.size() - 1;
  }
  Message receive_message(int, int, std::span<std::byte> room) override {
    messages_.push_back({.room = room});
    return messages_.size() - 1;
  }
  bool message_done(Message message) override { return messages_[message].done; }

  // The n-th message that is under way.
  void finish(std::size_t n, Input& bytes) {
    for (Pending& each : messages_) {
      if (each.done || n-- > 0) continue;
      for (const std::byte sent : each.leaves) sum_ ^= sent;
      std::fill(each.room.begin(), each.room.end(), bytes.take<std::byte>());
      each.done = true;
      return;
    }
  }

 private:
  struct Pending {
    std::span<const std::byte> leaves;
    std::span<std::byte> room;
    bool done = false;
  };
  std::vector<Pending> messages_;
  std::byte sum_{};  // so that what is sent is read
};

// The run of rank 0, in memory of just the size that it needs, and peers' memory of just the size that it may see.
struct Victim {
  Victim(const plan::Plan& plan, std::size_t count, bool sees_memory, std::span<transport::Link* const> links)
      : data(count * sizeof(float)),
        input(count * sizeof(float)),
        run(plan, operands(plan, count, sees_memory), links, kLane, kRun) {}

  std::vector<std::byte> data;
  std::vector<std::byte> input;
  std::vector<std::byte> scratch;
  std::vector<std::vector<std::byte>> theirs;
  std::vector<std::vector<std::byte>> blocks;
  carriers::PlanRun run;

 private:
  plan::Operands operands(const plan::Plan& plan, std::size_t count, bool sees_memory) {
    plan::Operands all{.dtype = DType::kFloat32, .op = ReduceOp::kSum};
    all.data_layout = all.input_layout = plan::Layout::even(count, plan.chunks);
    scratch.resize(plan.scratch_chunks * all.data_layout.largest() * sizeof(float));
    all.data = data.data();
    all.input = input.data();
    all.scratch = scratch.data();
    for (int rank = 0; sees_memory && rank < plan.nodes; ++rank) {
      std::size_t block = 0;
      for (std::uint32_t chunk = 0; chunk < plan.chunks; ++chunk) {
        if (chunk * static_cast<std::uint32_t>(plan.nodes) / plan.chunks == static_cast<std::uint32_t>(rank)) {
          block += all.data_layout.size(chunk);
        }
      }
      theirs.emplace_back(data.size());
      blocks.emplace_back(block * sizeof(float));
      all.peer_data.push_back(theirs.back().data());
      all.peer_blocks.push_back(blocks.back().data());
    }
    return all;
  }
};

// What the run works in.
struct World {
  plan::Topology topology;
  bool sees_memory = false;
  bool has_messages = false;

  explicit World(Input& bytes) {
    const auto how = bytes.take<std::uint8_t>();
    const int ranks = (how & 1) != 0 ? kMostRanks : 3;
    sees_memory = (how & 2) != 0;
    has_messages = (how & 4) != 0;
    for (int rank = 0; rank < ranks; ++rank) topology.host_of.push_back(sees_memory ? 0 : rank);
  }
};

std::optional<plan::Plan> some_plan(const World& world, Input& bytes) {
  const auto& all = plan::generators();
  plan::PlanRequest request{.collective = static_cast<Collective>(bytes.below(kCollectiveCount - 1)),
                            .topology = &world.topology,
                            .root = static_cast<Rank>(bytes.below(static_cast<std::size_t>(world.topology.ranks()))),
                            .parts = 1 + static_cast<int>(bytes.below(3))};
  if (request.collective == Collective::kAllreduce) {
    request.compression = static_cast<Compression>(bytes.below(kCompressionCount));
  }
  request.memory_visible = world.sees_memory;
  request.inputs_ready = world.sees_memory && bytes.flip();
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

void act(transport::SimNetwork& network, Victim& victim, std::span<transport::Link* const> links, bool has_messages,
         Input& bytes, std::size_t chunk_bytes) {
  const auto peer = static_cast<Rank>(1 + bytes.below(links.size() - 1));
  switch (bytes.below(6)) {
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
    case 4:
      if (has_messages) static_cast<MessageLink*>(links[static_cast<std::size_t>(peer)])->finish(bytes.below(4), bytes);
      break;
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
  const World world(bytes);
  const auto plan = some_plan(world, bytes);
  const int ranks = world.topology.ranks();
  if (!plan || plan->nodes != ranks) return;
  transport::SimNetwork network(ranks, 1, {.lane_bytes = 1 << 16});
  std::vector<std::unique_ptr<transport::Link>> owned(1);
  std::vector<transport::Link*> links(1);
  for (Rank peer = 1; peer < ranks; ++peer) {
    owned.push_back(network.link(0, peer));
    if (world.has_messages) owned.back() = std::make_unique<MessageLink>(std::move(owned.back()));
    links.push_back(owned.back().get());
  }
  const std::size_t count = 1 + bytes.below(64);
  const std::size_t chunk_bytes = plan::Layout::even(count, plan->chunks).largest() * sizeof(float);
  Victim victim(*plan, count, world.sees_memory, links);
  try {
    for (int events = 0; events < 100 && !bytes.empty(); ++events) {
      act(network, victim, links, world.has_messages, bytes, chunk_bytes);
    }
    require(!victim.run.waiting_for().empty() || victim.run.done() || victim.run.sending(),
            "it says what it waits for");
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kProtocol, "what cannot be read is an error of the protocol");
  }
}

}  // namespace ringcore::fuzz
