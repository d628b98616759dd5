// A job of three engines, in which what two of them say to the third is changed on its way: records are valid but for
// what the fuzzer does to one now and then, so that they come to the code behind the parser.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carriers/standard.hpp"
#include "engine/engine.hpp"
#include "fuzz/target.hpp"
#include "transport/sim/forwarding_link.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::fuzz {
namespace {

using engine::RecordHeader;
using engine::RecordType;
using engine::ShortHeader;
constexpr Rank kRanks = 3;
constexpr Rank kTested = 0;

// Between one of the others and the rank that is tested: whole records of control go through `job`, all else as it is.
template <class Job>
class AlteringLink final : public transport::ForwardingLink {
 public:
  AlteringLink(std::unique_ptr<Link> link, Job& job, Rank from)
      : ForwardingLink(std::move(link)), job_(job), from_(from) {}

  using Link::write;
  std::size_t write(int lane, std::span<const std::byte> bytes) override {
    if (lane != transport::kControlLane) return ForwardingLink::write(lane, bytes);
    said_.insert(said_.end(), bytes.begin(), bytes.end());
    ShortHeader beginning;
    while (said_.size() >= sizeof(beginning)) {
      std::memcpy(&beginning, said_.data(), sizeof(beginning));
      if (said_.size() < beginning.bytes) break;
      const auto end = said_.begin() + static_cast<std::ptrdiff_t>(beginning.bytes);
      job_.pass_on(from_, {said_.begin(), end});
      said_.erase(said_.begin(), end);
    }
    return bytes.size();
  }

 private:
  Job& job_;
  Rank from_;
  std::vector<std::byte> said_;  // of a record that is not whole
};

// What the fuzzer is about to do to a record.
struct Change {
  std::uint8_t kind = 0;
  std::uint8_t which = 0;
  std::uint64_t number = 0;
};

// A number that often fits, and now and then any.
std::uint64_t some_number(Input& bytes) {
  const auto number = bytes.take<std::uint8_t>();
  return number >= 0xe0 ? bytes.take<std::uint64_t>() : number % 8;
}

void change_header(RecordHeader& header, const Change& change) {
  const auto narrow = static_cast<std::uint32_t>(change.number);
  switch (change.which % 15) {
    case 0: header.type = static_cast<RecordType>(change.number % engine::kRecordTypeCount); break;
    case 1: header.flags ^= static_cast<std::uint8_t>(1U << (change.number & 7)); break;
    case 2: header.process_set = static_cast<engine::ProcessSetId>(change.number); break;
    case 3: header.epoch = narrow; break;
    case 4: header.position += change.number; break;
    case 5: header.signature ^= change.number; break;
    case 6: header.name_hash ^= change.number; break;
    case 7: header.rows = change.number; break;
    case 8: header.location = change.number; break;
    case 9: header.priority = static_cast<std::int32_t>(narrow); break;
    case 10: header.descriptor_bytes = narrow; break;
    case 11: header.splits_count = narrow; break;
    case 12: header.payload_bytes = narrow; break;
    case 13: header.bytes = narrow; break;
    default: header.flags = static_cast<std::uint8_t>(change.number); break;
  }
}

void change_descriptor(engine::Descriptor& made, const Change& change) {
  const auto small = static_cast<std::uint8_t>(change.number);
  switch (change.which % 12) {
    case 0: made.collective = static_cast<Collective>(small % kCollectiveCount); break;
    case 1: made.dtype = static_cast<DType>(small % kDTypeCount); break;
    case 2: made.op = static_cast<ReduceOp>(small % kReduceOpCount); break;
    case 3: made.root = static_cast<Rank>(change.number); break;
    case 4: made.shape.dims = small % (engine::Shape::kMaxDims + 1); break;
    case 5: made.shape.extent[small % engine::Shape::kMaxDims] = change.number >> 3; break;
    case 6: made.prescale = static_cast<double>(small); break;
    case 7: made.compression = static_cast<Compression>(small % kCompressionCount); break;
    case 8: made.on_device = !made.on_device; break;
    case 9: made.device_index = small; break;
    case 10: made.captured = !made.captured; break;
    default:
      if (made.is_group() && small % 2 == 0) {
        made.parts.pop_back();
      } else if (made.is_group()) {
        auto other = std::make_shared<engine::Descriptor>(*made.parts.front());
        other->shape.extent[0] = change.number;
        made.parts.front() = std::move(other);
      }
  }
}

class AlteredJob {
 public:
  explicit AlteredJob(Input& bytes) : bytes_(bytes), network_(kRanks, 1, {.lane_bytes = 1 << 16}) {
    engine::EngineSettings settings;
    settings.execution.fusion_threshold_bytes = 4096;
    settings.direct_members = bytes.below(4) == 0 ? 1 : 16;
    settings.elastic = bytes.below(4) == 0;
    settings.timeout = kSecond;
    settings.stall_warning = kSecond / 4;
    settings.standstill = kSecond / 8;
    if (bytes.below(8) == 0) change_something();  // a greeting
    for (Rank rank = 0; rank < kRanks; ++rank) {
      engine::EngineConfig config;
      config.rank = rank;
      config.host_of = {0, 1, 2};
      config.make_carriers = carriers::standard();
      config.links.resize(kRanks);
      for (Rank peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        auto& link = config.links[static_cast<std::size_t>(peer)] = network_.link(rank, peer);
        if (peer == kTested) link = std::make_unique<AlteringLink<AlteredJob>>(std::move(link), *this, rank);
      }
      engines_[rank] = std::make_unique<engine::Engine>(std::move(config), settings, network_.clock());
    }
    run();
  }

  // A record of this rank's comes by.
  void pass_on(Rank from, std::vector<std::byte> record) {
    if (const auto change = std::exchange(changes_[from], {})) {
      is_altered_ = true;
      alter(from, std::move(record), *change);
      return;
    }
    say(from, std::move(record));
    if (auto late = std::exchange(held_[from], {}); !late.empty()) say(from, std::move(late));
  }

  void act() {
    if (!late_set_.empty() && bytes_.below(4) == 0) add_late_set();
    switch (bytes_.below(12)) {
      case 0: return change_something();
      case 1: return inject();
      case 2: return pass(bytes_.take<std::uint8_t>() * kMillisecond);
      case 3: return submit(some_rank(), some_wish());
      case 4: return submit_different();
      case 5:
      case 6: return happen();
      default: {
        const Wish wish = some_wish();
        for (Rank rank = 0; rank < kRanks; ++rank) submit(rank, wish);
      }
    }
  }

  bool has_failed() const { return engines_[kTested]->failure() != nullptr; }

  // Whatever has happened, nobody waits for ever; and who was told the truth has nothing to say against it.
  void end() {
    const auto failure = engines_[kTested]->failure();
    require(is_altered_ || failure == nullptr || failure->kind() != ErrorKind::kProtocol,
            "what is valid is understood");
    for (const auto& each : engines_) {
      each->fail(std::make_shared<const Error>(ErrorKind::kShutdown, "the fuzzer has seen enough"));
    }
    run();
    for (const auto& [rank, operation] : operations_) {
      require(rank != kTested || operation->done(), "what fails brings all operations to an end");
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = network_.step();
      for (const auto& each : engines_) {
        if (each == nullptr) continue;
        for (int moves = 0; each->progress(); ++moves) require(moves < 100'000, "nothing moves for ever");
      }
    }
  }

 private:
  // What a rank submits.
  struct Wish {
    std::string name;
    Collective collective{};
    DType dtype{};
    ReduceOp op{};
    Rank root = 0;
    std::uint64_t rows = 0;
    std::uint64_t columns = 0;
    double prescale = 1.0;
    Compression compression{};
    int priority = 0;
    bool awaited = false;
    bool only_thread = false;
    bool with_output = false;
    std::size_t parts = 0;  // of a group; 0: of none
    engine::ProcessSetId set = engine::kWorld;
    std::vector<std::uint64_t> splits;
    int watched = 0;
    bool joins = false;
  };

  Rank some_rank() { return static_cast<Rank>(bytes_.below(kRanks)); }
  Rank some_other() { return static_cast<Rank>(1 + bytes_.below(kRanks - 1)); }

  Wish some_wish() {
    Wish wish;
    const auto flags = bytes_.take<std::uint8_t>();
    wish.name = std::string(1, static_cast<char>('a' + bytes_.below(6)));
    wish.collective = static_cast<Collective>(bytes_.below(kCollectiveCount));
    wish.dtype = (flags & 1) != 0 ? static_cast<DType>(bytes_.below(kDTypeCount)) : DType::kFloat32;
    wish.op = (flags & 1) != 0 ? static_cast<ReduceOp>(bytes_.below(kReduceOpCount)) : ReduceOp::kSum;
    wish.root = static_cast<Rank>((flags & 2) != 0 ? bytes_.below(4) : 0);
    wish.rows = 3 * bytes_.below(4);
    wish.columns = bytes_.below(3) == 0 ? 400 : bytes_.below(8);
    wish.awaited = (flags & 4) != 0;
    wish.only_thread = wish.awaited && (flags & 128) != 0;
    wish.with_output = (flags & 8) != 0;
    if ((flags & 16) != 0) wish.parts = bytes_.below(4);
    if ((flags & 32) != 0 && !sets_.empty()) wish.set = sets_[bytes_.below(sets_.size())];
    if ((flags & 64) != 0) {
      wish.prescale = static_cast<double>(1 + bytes_.below(3));
      wish.compression = static_cast<Compression>(bytes_.below(kCompressionCount));
      wish.priority = std::int32_t{bytes_.take<std::uint8_t>()} - 128;
      for (std::size_t i = bytes_.below(5); i > 0; --i) wish.splits.push_back(some_number(bytes_));
    }
    if (flags >= 0xf8) wish.watched = 1 + static_cast<int>(bytes_.below(kRanks));
    if (flags >= 0x80 && flags < 0x88) wish.joins = true;
    return wish;
  }

  // All submit the same but one, which has something else.
  void submit_different() {
    const Wish wish = some_wish();
    Wish other = wish;
    switch (bytes_.below(9)) {
      case 0: other.dtype = static_cast<DType>(bytes_.below(kDTypeCount)); break;
      case 1: other.op = static_cast<ReduceOp>(bytes_.below(kReduceOpCount)); break;
      case 2: other.root = static_cast<Rank>(bytes_.below(4)); break;
      case 3: other.rows = bytes_.below(16); break;
      case 4: other.columns = bytes_.below(16); break;
      case 5: other.prescale = 0.5; break;
      case 6: other.parts = bytes_.below(4); break;
      case 7: other.collective = static_cast<Collective>(bytes_.below(kCollectiveCount)); break;
      default: other.compression = static_cast<Compression>(bytes_.below(kCompressionCount));
    }
    const Rank differs = some_rank();
    for (Rank rank = 0; rank < kRanks; ++rank) submit(rank, rank == differs ? other : wish);
  }

  void submit(Rank rank, const Wish& wish) {
    try {
      auto operation = made_of(wish);
      operation->awaited = wish.awaited;
      operation->only_thread = wish.only_thread;
      engines_[rank]->submit(operation);
      operations_.emplace_back(rank, std::move(operation));
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a caller's own mistakes are told to the caller
    }
    run();
  }

  std::shared_ptr<engine::Operation> made_of(const Wish& wish) {
    auto operation = std::make_shared<engine::Operation>();
    operation->process_set = wish.set;
    operation->descriptor.name = wish.name;
    operation->join = wish.joins;
    operation->watched_members = wish.watched;
    if (wish.joins || wish.watched > 0) return operation;
    if (wish.collective == Collective::kBarrier) {
      operation->descriptor.collective = Collective::kBarrier;
      operation->descriptor.shape = engine::Shape::of(std::array<std::uint64_t, 1>{0});
      return operation;
    }
    if (wish.parts == 0) return tensor_of(wish);
    std::vector<std::shared_ptr<engine::Operation>> parts(wish.parts);
    for (auto& part : parts) part = tensor_of(wish);
    return engine::make_group(wish.name, std::move(parts));
  }

  engine::Array array_of(const Wish& wish, std::uint64_t rows) {
    const std::array<std::uint64_t, 2> extent = {rows, wish.columns};
    const engine::Shape shape = engine::Shape::of(extent);
    memory_.push_back(std::make_unique<std::vector<std::byte>>(shape.elements() * size_of(wish.dtype)));
    return {memory_.back()->data(), shape, wish.dtype};
  }

  std::shared_ptr<engine::Operation> tensor_of(const Wish& wish) {
    const engine::Call call{.collective = wish.collective,
                            .name = wish.name,
                            .op = wish.op,
                            .root = wish.root,
                            .prescale = wish.prescale,
                            .process_set = wish.set,
                            .priority = wish.priority,
                            .compression = wish.compression};
    const engine::Array input = array_of(wish, wish.rows);
    std::optional<engine::Array> output;
    if (engine::has_own_result(wish.collective)) {
      const bool gathers = wish.collective == Collective::kAllgather || wish.collective == Collective::kGather;
      if (wish.with_output) output = array_of(wish, gathers ? wish.rows * kRanks : wish.rows / kRanks);
    } else {
      output = wish.with_output ? array_of(wish, wish.rows) : input;
    }
    auto operation = engine::make_operation(call, input, output ? &*output : nullptr);
    if (engine::has_splits(wish.collective)) operation->splits = wish.splits;
    return operation;
  }

  void pass(Nanoseconds duration) {
    network_.run_until(network_.clock().now() + duration);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      std::vector<const engine::Operation*> waits;
      for (const auto& [whose, operation] : operations_) {
        if (stands_[rank] && whose == rank && !operation->done()) waits.push_back(operation.get());
      }
      engines_[rank]->all_wait(waits);
      engines_[rank]->check_timers(true);
    }
    run();
  }

  // What is no operation.
  void happen() {
    const Rank rank = some_rank();
    engine::Engine& engine = *engines_[rank];
    try {
      switch (bytes_.below(10)) {
        case 0: network_.cut(kTested, some_other()); break;
        case 1: engine.refuse(engine::kWorld, std::string(1, static_cast<char>('a' + bytes_.below(6))), "no"); break;
        case 2: add_set(bytes_.flip() ? std::vector<Rank>{0, 1, 2} : std::vector<Rank>{0, 1}, bytes_.flip()); break;
        case 3: remove_set(); break;
        case 4: engine.leave("the fuzzer says so"); break;
        case 5:
          if (!operations_.empty()) {
            const auto& [whose, operation] = operations_[bytes_.below(operations_.size())];
            engines_[whose]->wanted(*operation, bytes_.flip());
          }
          break;
        case 6:
          stands_[rank] = true;
          if (rank == kTested) stands_.fill(true);  // a deadlock is one of all
          break;
        case 7:
          stands_[rank] = false;
          engine.gave_up();
          break;
        case 8:
          if (engine.take_stack_request()) engine.reply_stacks("here");
          engine.take_warnings();
          break;
        default:
          if (engine.change() != nullptr) engine.accept_change(engine.membership().epoch());
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): as in `submit`
    }
    run();
  }

  // On all ranks, in the same order. Where one refuses, they count sets differently from here on: what comes of that is
  // their caller's fault.
  void add_set(const std::vector<Rank>& members, bool late) {
    if (!late_set_.empty()) return;
    try {
      engine::ProcessSetId id = engine::kWorld;
      for (Rank rank = 0; rank < kRanks; ++rank) {
        if (!late || rank != kTested) id = engines_[rank]->add_process_set(members);
      }
      sets_.push_back(id);
      if (late) late_set_ = members;
    } catch (const Error&) {
      is_altered_ = true;
    }
  }

  // The tested rank comes to it when it has heard of it already.
  void add_late_set() {
    try {
      engines_[kTested]->add_process_set(std::exchange(late_set_, {}));
    } catch (const Error&) {
      is_altered_ = true;
    }
    run();
  }

  void remove_set() {
    if (sets_.empty() || !late_set_.empty()) return;
    try {
      for (const auto& each : engines_) each->remove_process_set(sets_.back());
    } catch (const Error&) {
      is_altered_ = true;
    }
    sets_.pop_back();
  }

  void change_something() {
    changes_[some_other()] = {
        .kind = bytes_.take<std::uint8_t>(), .which = bytes_.take<std::uint8_t>(), .number = some_number(bytes_)};
  }

  void alter(Rank from, std::vector<std::byte> record, const Change& change) {
    const std::size_t header_bytes = engine::is_tree_record(record) ? sizeof(ShortHeader) : sizeof(RecordHeader);
    const std::size_t place = change.which < record.size() ? change.which : record.size() - 1;
    switch (change.kind % 8) {
      case 0: return;  // lost
      case 1: held_[from] = std::move(record); return;
      case 2: say(from, record); break;  // twice
      case 3: record[place] ^= static_cast<std::byte>(1U << (change.number & 7)); break;
      case 4: record[std::max(place, header_bytes) % record.size()] = static_cast<std::byte>(change.number); break;
      default:
        if (header_bytes == sizeof(ShortHeader)) {
          record[place % sizeof(ShortHeader)] = static_cast<std::byte>(change.number);
        } else {
          record = rebuilt(record, change);
        }
    }
    say(from, std::move(record));
  }

  // Parts of the record are others, and fit together.
  std::vector<std::byte> rebuilt(std::span<const std::byte> record, const Change& change) const {
    const auto view = engine::parse_record(record);
    RecordHeader header = view->header;
    if (change.kind % 8 == 5) {
      change_header(header, change);
      std::vector<std::byte> made(record.begin(), record.end());
      std::memcpy(made.data(), &header, sizeof(header));
      return made;
    }
    std::vector<std::byte> descriptor(view->descriptor.begin(), view->descriptor.end());
    std::vector<std::uint64_t> splits(header.splits_count);
    if (!splits.empty()) std::memcpy(splits.data(), view->splits.data(), view->splits.size());
    std::vector<std::byte> payload(view->payload.begin(), view->payload.end());
    if (change.kind % 8 == 6 && !descriptor.empty()) {
      engine::Descriptor described = engine::decode_descriptor(descriptor);
      change_descriptor(described, change);
      header.signature = described.signature();
      header.name_hash = described.name_hash();
      descriptor = engine::encode(described);
    } else if (change.which % 3 == 0) {
      payload.resize(change.number % engine::kMaxPayloadBytes);
    } else if (change.which % 3 == 1) {
      splits.resize(change.number % 8, change.number);
    } else {
      change_header(header, change);
    }
    return engine::build_record(header, descriptor, splits, payload);
  }

  // A record that nobody has said.
  void inject() {
    RecordHeader header;
    header.type = static_cast<RecordType>(bytes_.below(engine::kRecordTypeCount - 1));
    header.flags = bytes_.take<std::uint8_t>();
    header.position = some_number(bytes_);
    header.name_hash = engine::hash_bytes(std::string(1, static_cast<char>('a' + bytes_.below(6))));
    header.rows = some_number(bytes_);
    header.location = some_number(bytes_);
    const Bytes payload = bytes_.piece(bytes_.below(64));
    is_altered_ = true;
    say(some_other(), engine::build_record(header, {}, {}, payload));
    run();
  }

  // Records are counted here, so that one more or less is not all that is noticed.
  void say(Rank from, std::vector<std::byte> record) {
    ShortHeader beginning;
    std::memcpy(&beginning, record.data(), sizeof(beginning));
    beginning.sequence = said_[from]++;
    std::memcpy(record.data(), &beginning, sizeof(beginning));
    network_.inject(from, kTested, transport::kControlLane, record);
  }

  Input& bytes_;
  transport::SimNetwork network_;
  // Read and written until the engines are gone.
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
  std::vector<std::pair<Rank, std::shared_ptr<engine::Operation>>> operations_;
  std::vector<engine::ProcessSetId> sets_;
  std::vector<Rank> late_set_;  // the others have added it
  std::array<std::optional<Change>, kRanks> changes_;  // of the next record of each
  std::array<std::vector<std::byte>, kRanks> held_;  // comes behind the next one
  std::array<std::uint32_t, kRanks> said_{};
  std::array<bool, kRanks> stands_{};
  bool is_altered_ = false;
  std::array<std::unique_ptr<engine::Engine>, kRanks> engines_;
};

}  // namespace

void altered_records(Bytes input) {
  Input bytes(input);
  AlteredJob job(bytes);
  for (int events = 0; events < 40 && !bytes.empty() && !job.has_failed(); ++events) job.act();
  job.end();
}

}  // namespace ringcore::fuzz
