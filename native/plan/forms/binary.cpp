#include "plan/forms/binary.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "plan/excerpt.hpp"
#include "plan/forms/text.hpp"
#include "plan/forms/whole.hpp"

namespace ringcore::plan {
namespace {

// No text begins so.
constexpr std::array<std::byte, 4> kMagic = {std::byte{0x8f}, std::byte{'R'}, std::byte{'C'}, std::byte{'P'}};
constexpr std::uint64_t kMostIndex = std::numeric_limits<int>::max();
// Bits of a header's and of a step's flags.
constexpr std::uint64_t kInputsReady = 1;
constexpr std::uint64_t kOneSided = 2;
constexpr std::uint64_t kAccumulatesOnce = 4;
constexpr std::uint64_t kCompression = 8;  // times its number
constexpr std::uint64_t kFinal = 1;
constexpr std::uint64_t kAfter = 2;
constexpr std::uint64_t kPeer = 4;
constexpr std::uint64_t kQuantised = 8;

class Writer {
 public:
  void number(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_.push_back(static_cast<std::byte>((value & 127U) | 128U));
    bytes_.push_back(static_cast<std::byte>(value));
  }
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

  void chunks(const std::vector<ChunkRef>& refs, Rank self) {
    number(refs.size());
    for (const ChunkRef& ref : refs) {
      const bool other = ref.rank != self;
      number(std::uint64_t{ref.chunk} << 3 | static_cast<std::uint64_t>(ref.buffer) << 1 |
             static_cast<std::uint64_t>(other));
      if (other) number(static_cast<std::uint64_t>(ref.rank));
    }
  }
  void step(const Step& step, Rank self) {
    const bool after = step.after_channel >= 0;
    number(static_cast<std::uint64_t>(step.kind));
    number((step.final ? kFinal : 0) | (after ? kAfter : 0) | (step.peer >= 0 ? kPeer : 0) |
           (step.quantised ? kQuantised : 0));
    if (step.peer >= 0) number(static_cast<std::uint64_t>(step.peer));
    chunks(step.sources, self);
    chunks(step.targets, self);
    if (!after) return;
    number(static_cast<std::uint64_t>(step.after_channel));
    number(static_cast<std::uint64_t>(step.after_step));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes), at_(kMagic.size()) {}

  WholePlan read() {
    WholePlan plan;
    const std::uint64_t version = number("the version", kMostIndex);
    if (version != static_cast<std::uint64_t>(kFormVersion)) {
      fail("the plan is of version " + std::to_string(version) + ", but this ringcore reads version " +
           std::to_string(kFormVersion) + "; install one that is as new as the plan");
    }
    for (std::uint64_t left = number("the name's length", kMostNameCharacters); left > 0; --left) {
      const std::uint64_t letter = number("a letter of the name", '~');
      if (letter < ' ' || letter == '"' || letter == '\\') fail("the name has another letter than printable ASCII");
      plan.generator.push_back(static_cast<char>(letter));
    }
    plan.collective = static_cast<Collective>(number("the collective", kCollectiveCount - 1));
    plan.ranks = static_cast<int>(number("the ranks", kMostNodes));
    plan.nodes = static_cast<int>(number("the nodes", kMostNodes));
    plan.root = static_cast<Rank>(number("the root", kMostNodes));
    plan.chunks = static_cast<std::uint32_t>(number("the chunks", kMostChunks));
    plan.scratch_chunks = static_cast<std::uint32_t>(number("the scratch chunks", kMostChunks));
    constexpr std::uint64_t kMostCompression = kCompression * (kCompressionCount - 1);
    const std::uint64_t flags = number("the flags", kInputsReady | kOneSided | kAccumulatesOnce | kMostCompression);
    plan.inputs_ready = (flags & kInputsReady) != 0;
    plan.one_sided = (flags & kOneSided) != 0;
    plan.accumulates_once = (flags & kAccumulatesOnce) != 0;
    plan.compression = static_cast<Compression>(flags / kCompression);
    if (const auto flaw = flaw_of_header(plan)) fail(*flaw);
    for (Rank rank = 0; rank < plan.nodes; ++rank) plan.programs.push_back(program(rank));
    if (at_ != bytes_.size()) fail("the plan goes on behind its end; leave out what follows");
    return plan;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kInvalidArgument, "byte " + std::to_string(at_) + ": " + what);
  }

  std::uint64_t number(std::string_view what, std::uint64_t most) {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (at_ == bytes_.size()) fail("the plan ends before " + std::string(what) + "; it was cut off, send all of it");
      const auto byte = static_cast<std::uint64_t>(bytes_[at_++]);
      value |= (byte & 127U) << shift;
      if (byte < 128) break;
      if (shift == 28) fail(std::string(what) + " is longer than a number may be; write the plan anew");
    }
    if (value > most) {
      fail(std::string(what) + " is " + std::to_string(value) + ", but at most " + std::to_string(most) +
           " is accepted");
    }
    return value;
  }

  std::vector<ChunkRef> chunks(Rank self) {
    std::vector<ChunkRef> refs;
    for (std::uint64_t left = number("a step's number of chunks", kMostOperands); left > 0; --left) {
      const std::uint64_t packed = number("a chunk", std::uint64_t{kMostChunks} << 3 | 7U);
      const std::uint64_t buffer = packed >> 1 & 3U;
      if (buffer >= kBufferNames.size()) fail("a chunk lies in a buffer that is none; write the plan anew");
      const bool other = (packed & 1U) != 0;
      refs.push_back({.rank = other ? static_cast<Rank>(number("a chunk's rank", kMostNodes)) : self,
                      .buffer = static_cast<Buffer>(buffer),
                      .chunk = static_cast<std::uint32_t>(packed >> 3)});
    }
    return refs;
  }

  Step step(Rank self) {
    if (++steps_ > kMostSteps)
      fail("the plan has more than " + std::to_string(kMostSteps) + " steps; use fewer chunks");
    Step step;
    step.kind = static_cast<StepKind>(number("a step's kind", kStepNames.size() - 1));
    const std::uint64_t flags = number("a step's flags", kFinal | kAfter | kPeer | kQuantised);
    step.final = (flags & kFinal) != 0;
    step.quantised = (flags & kQuantised) != 0;
    if ((flags & kPeer) != 0) step.peer = static_cast<Rank>(number("a step's peer", kMostNodes));
    step.sources = chunks(self);
    step.targets = chunks(self);
    if ((flags & kAfter) == 0) return step;
    step.after_channel = static_cast<int>(number("the channel to wait for", kMostIndex));
    step.after_step = static_cast<int>(number("the step to wait for", kMostIndex));
    return step;
  }

  Program program(Rank rank) {
    Program program;
    for (std::uint64_t channels = number("a rank's channels", kMostChannels); channels > 0; --channels) {
      Channel& channel = program.channels.emplace_back();
      for (std::uint64_t left = number("a channel's steps", kMostSteps); left > 0; --left)
        channel.push_back(step(rank));
    }
    return program;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_;
  std::size_t steps_ = 0;
};

}  // namespace

std::vector<std::byte> to_binary(const WholePlan& plan) {
  Writer writer;
  writer.raw(kMagic);
  writer.number(static_cast<std::uint64_t>(kFormVersion));
  writer.number(plan.generator.size());
  for (const char letter : plan.generator) writer.number(static_cast<unsigned char>(letter));
  writer.number(static_cast<std::uint64_t>(plan.collective));
  for (const int value : {plan.ranks, plan.nodes, plan.root}) writer.number(static_cast<std::uint64_t>(value));
  writer.number(plan.chunks);
  writer.number(plan.scratch_chunks);
  writer.number((plan.inputs_ready ? kInputsReady : 0) | (plan.one_sided ? kOneSided : 0) |
                (plan.accumulates_once ? kAccumulatesOnce : 0) |
                kCompression * static_cast<std::uint64_t>(plan.compression));
  for (std::size_t rank = 0; rank < plan.programs.size(); ++rank) {
    writer.number(plan.programs[rank].channels.size());
    for (const Channel& channel : plan.programs[rank].channels) {
      writer.number(channel.size());
      for (const Step& step : channel) writer.step(step, static_cast<Rank>(rank));
    }
  }
  return writer.take();
}

bool is_binary(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() && std::equal(kMagic.begin(), kMagic.end(), bytes.begin());
}

WholePlan from_binary(std::span<const std::byte> bytes) {
  if (!is_binary(bytes)) throw Error(ErrorKind::kInvalidArgument, "byte 0: these bytes are no plan of ringcore");
  if (bytes.size() > kMostBinaryBytes) {
    throw Error(ErrorKind::kInvalidArgument, "the plan has " + std::to_string(bytes.size()) + " bytes; " +
                                                 std::to_string(kMostBinaryBytes) +
                                                 " are read at most: use fewer chunks");
  }
  return Reader(bytes).read();
}

}  // namespace ringcore::plan
