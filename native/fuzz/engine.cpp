// The engine of rank 0, whose peers have greeted and then gone mad: records and bytes of every kind, in any order, between
// calls of its own.
#include "engine/engine.hpp"

#include <array>
#include <memory>
#include <vector>

#include "carriers/standard.hpp"
#include "fuzz/target.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::fuzz {
namespace {

using engine::RecordHeader;
using engine::RecordType;
constexpr int kRanks = 3;

class MadJob {
 public:
  explicit MadJob(Input& bytes) : bytes_(bytes), network_(kRanks, 1) {
    engine::EngineSettings settings;
    settings.execution.fusion_threshold_bytes = 4096;
    settings.direct_members = bytes.flip() ? 16 : 1;
    settings.timeout = kSecond;
    for (Rank rank = 0; rank < kRanks; ++rank) engines_[rank] = make(rank, settings);
    run();
    for (Rank rank = 1; rank < kRanks; ++rank) engines_[rank] = nullptr;  // they have said nothing but their greeting
  }

  void act() {
    switch (bytes_.below(10)) {
      case 0: submit(); break;
      case 1:
        if (!operations_.empty()) engine().wanted(*operations_[bytes_.below(operations_.size())], bytes_.flip());
        break;
      case 2: network_.inject(mad(), 0, lane(), bytes_.piece(bytes_.take<std::uint8_t>())); break;
      case 3: network_.run_until(network_.clock().now() + bytes_.take<std::uint8_t>() * kMillisecond); break;
      case 4: network_.cut(0, mad()); break;
      case 5: tree_record(); break;
      default: record(); break;
    }
    run();
  }

  // Whatever has happened, nobody waits for ever.
  void end() {
    engine().fail(std::make_shared<const Error>(ErrorKind::kShutdown, "the fuzzer has seen enough"));
    run();
    for (const auto& operation : operations_) require(operation->done(), "what fails brings all operations to an end");
  }

 private:
  engine::Engine& engine() { return *engines_[0]; }
  Rank mad() { return static_cast<Rank>(1 + bytes_.below(kRanks - 1)); }
  int lane() { return static_cast<int>(bytes_.below(transport::kLaneCount)); }

  std::unique_ptr<engine::Engine> make(Rank rank, const engine::EngineSettings& settings) {
    engine::EngineConfig config;
    config.rank = rank;
    config.host_of = {0, 1, 2};
    config.make_carriers = carriers::standard();
    config.links.resize(kRanks);
    for (Rank peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) config.links[static_cast<std::size_t>(peer)] = network_.link(rank, peer);
    }
    return std::make_unique<engine::Engine>(std::move(config), settings, network_.clock());
  }

  void run() {
    while (network_.step()) {
    }
    for (const auto& each : engines_) {
      if (each == nullptr) continue;
      each->check_timers(true);
      for (int moves = 0; each->progress(); ++moves) require(moves < 100'000, "nothing moves for ever");
    }
  }

  engine::Descriptor descriptor() {
    engine::Descriptor made;
    made.name = std::string(1, static_cast<char>('a' + bytes_.below(4)));
    made.collective = static_cast<Collective>(bytes_.below(kCollectiveCount));
    made.dtype = static_cast<DType>(bytes_.below(kDTypeCount));
    made.op = static_cast<ReduceOp>(bytes_.below(kReduceOpCount));
    made.root = static_cast<Rank>(bytes_.below(4));
    const std::array<std::uint64_t, 2> extent = {bytes_.below(8), bytes_.below(40)};
    made.shape = engine::Shape::of(std::span(extent).first(bytes_.below(3)));
    return made;
  }

  void submit() {
    const engine::Descriptor wanted = descriptor();
    const bool joins = bytes_.below(16) == 0;
    auto operation = std::make_shared<engine::Operation>();
    try {
      if (joins) {
        operation->join = true;
      } else if (wanted.collective == Collective::kBarrier) {
        operation->descriptor.name = wanted.name;
        operation->descriptor.collective = Collective::kBarrier;
      } else {
        operation = tensor_operation(wanted);
      }
      operation->awaited = bytes_.flip();
      engine().submit(operation);
      operations_.push_back(operation);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a caller's own mistakes are told to the caller
    }
  }

  std::shared_ptr<engine::Operation> tensor_operation(const engine::Descriptor& wanted) {
    const std::size_t size = wanted.shape.elements() * size_of(wanted.dtype);
    memory_.push_back(std::make_unique<std::vector<std::byte>>(size));
    const engine::Array array{memory_.back()->data(), wanted.shape, wanted.dtype};
    const engine::Call call{.collective = wanted.collective, .name = wanted.name, .op = wanted.op, .root = wanted.root};
    const bool in_place = wanted.collective == Collective::kAllreduce || wanted.collective == Collective::kBroadcast;
    return engine::make_operation(call, array, in_place ? &array : nullptr);
  }

  // A number that fits often, and now and then anything.
  std::uint64_t some_number() {
    return bytes_.below(8) == 0 ? bytes_.take<std::uint64_t>() : bytes_.take<std::uint8_t>() % 8;
  }

  void record() {
    const Rank from = mad();
    const engine::Descriptor made = descriptor();
    RecordHeader header;
    header.type = static_cast<RecordType>(bytes_.below(engine::kRecordTypeCount - 1));
    header.flags = bytes_.take<std::uint8_t>();
    header.process_set = static_cast<engine::ProcessSetId>(bytes_.below(8) == 0 ? bytes_.take<std::uint16_t>() : 0);
    header.epoch = bytes_.below(32) == 0 ? 1 : 0;
    header.sequence = sequence_[from]++;
    header.position = bytes_.below(4) == 0 ? some_number() : position_[from];
    header.signature = made.signature();
    header.name_hash = made.name_hash();
    header.rows = bytes_.flip() ? made.shape.rows() : some_number();
    header.location = bytes_.below(4) == 0 ? some_number() : 0;
    header.priority = bytes_.take<std::int16_t>();
    const bool described = (header.flags & engine::kHasDescriptor) != 0;
    std::vector<std::uint64_t> splits;
    if ((header.flags & engine::kHasSplits) != 0) {
      for (std::size_t i = bytes_.below(5); i > 0; --i) splits.push_back(some_number());
    }
    const bool fits = bytes_.flip();
    const std::size_t size = made.shape.elements() * size_of(made.dtype);
    std::vector<std::byte> payload((header.flags & engine::kEager) == 0 ? 0 : fits ? size : bytes_.below(64));
    const auto sent =
        engine::build_record(header, described ? engine::encode(made) : std::vector<std::byte>(), splits, payload);
    if (header.type < RecordType::kRemoved && header.process_set == 0) ++position_[from];
    network_.inject(from, 0, transport::kControlLane, sent);
  }

  void tree_record() {
    const Rank from = mad();
    const Bytes body = bytes_.piece(bytes_.take<std::uint8_t>());
    const std::size_t whole = (sizeof(engine::ShortHeader) + body.size() + 7) / 8 * 8;
    const engine::ShortHeader header{.bytes = static_cast<std::uint32_t>(whole),
                                     .flags = static_cast<std::uint8_t>(whole - sizeof(header) - body.size()),
                                     .sequence = sequence_[from]++};
    std::vector<std::byte> sent(whole);
    std::memcpy(sent.data(), &header, sizeof(header));
    if (!body.empty()) std::memcpy(sent.data() + sizeof(header), body.data(), body.size());
    network_.inject(from, 0, transport::kControlLane, sent);
  }

  Input& bytes_;
  transport::SimNetwork network_;
  // Read and written until the engine is gone.
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
  std::vector<std::shared_ptr<engine::Operation>> operations_;
  std::array<std::unique_ptr<engine::Engine>, kRanks> engines_;
  std::array<std::uint32_t, kRanks> sequence_ = {1, 1, 1};
  std::array<std::uint64_t, kRanks> position_{};
};

}  // namespace

void engine(Bytes input) {
  Input bytes(input);
  MadJob job(bytes);
  for (int events = 0; events < 60 && !bytes.empty(); ++events) job.act();
  job.end();
}

}  // namespace ringcore::fuzz
