// Collectives as data. A plan says, for each channel of a rank, which steps run in which order. A rank has its own
// program of a plan and no other's: what a plan costs grows with the longest program, not with the number of ranks.
//
// Chunks are fractions of the buffer: a plan knows their number, not their size, so that one plan serves every message
// size and can be cached. Where chunk c lies is said at run time by a Layout.
//
// Buffers and what they hold before (->) and after a plan, per rank r, for R ranks and P parts
// (P sub-chunks per rank block, for pipelining; block b is the chunks b*P .. b*P+P-1):
//
//   kAllreduce       R*P chunks of kData (a generator may use another number): own values -> the sum over all ranks
//   kReduceScatter   R*P chunks of kData: own values -> block r holds the sum; the other blocks are unspecified
//   kAllgather       R*P chunks of kData: block r is own, and only read -> block b holds rank b's
//   kBroadcast       P chunks of kData: root's hold the values, and are only read -> all hold root's
//   kReduce          any number of chunks of kData: own values -> root's hold the sum; the others' are unspecified
//   kGather          R*P chunks of kData: block r is own, and only read -> root's block b holds rank b's
//   kScatter         R*P chunks of kData: root's hold the values, and are only read -> block r holds root's block r; the
//                    other ranks' other blocks are unspecified
//   kAlltoall        R*P chunks of kInput: block d is for rank d -> R*P chunks of kData: block s came from rank s; what
//                    a rank gives itself is copied by whoever runs the plan, which may do so, too
//
// Nodes that are no ranks (topology.hpp) begin with nothing and end with anything.
// kScratch is private memory of the rank; its chunks are as large as the largest chunk of kData.
// `compression`: what goes between hosts is quantised (base/quantise.hpp), again at each hop, and added to sums as they
// are. A complete sum is rounded to what quantising leaves of it, on the one rank that completes it: whoever gets it, on
// whatever way, has the same bits. Blocks begin at the chunk.
// `inputs_ready`: before the plan starts, every rank knows that what every rank gives is complete. Only then may a step
// touch another rank's memory before a signal from that rank was waited for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace ringcore::plan {

enum class Buffer : std::uint8_t { kData, kInput, kScratch };

// One chunk of one rank's buffer. Another rank's chunk may be named only where ranks see each other's memory: of kData
// any, of kInput the block that is for the rank that names it.
struct ChunkRef {
  Rank rank = 0;
  Buffer buffer = Buffer::kData;
  std::uint32_t chunk = 0;
  bool operator==(const ChunkRef&) const = default;
};

enum class StepKind : std::uint8_t {
  kSend,  // sources (own) to `peer`, one transfer. Returns at once; one chunk is not overwritten before it is sent,
  // several are copied, and may be.
  kRecv,  // targets (own) = what `peer` sent; one into kScratch: sources[0] names the own chunk of that size
  kRecvReduce,  // targets (own) = targets op what `peer` sent
  kReduce,  // every target = sources[0] op sources[1] op ..., in this order. One source: a copy.
  kSignal,  // tells `peer` that all of this channel's earlier steps have taken effect in memory
  kWait,  // waits for the next kSignal of `peer`
};

struct Step {
  StepKind kind{};
  Rank peer = -1;  // kSend, kRecv, kRecvReduce, kSignal, kWait
  std::vector<ChunkRef> sources;
  std::vector<ChunkRef> targets;
  // kRecvReduce, kReduce: the result is the complete sum of all ranks; the average's 1/R is applied here, and only here.
  bool final = false;
  // kSend, kRecv, kRecvReduce: what goes from rank to rank is quantised. Only where the plan has a compression.
  bool quantised = false;
  // Runs only after step `after_step` of channel `after_channel` of the same rank has taken effect; -1: no condition.
  int after_channel = -1;
  int after_step = -1;
  bool operator==(const Step&) const = default;
};

using Channel = std::vector<Step>;

// What one rank does: its channels run side by side, the steps of a channel one after the other.
struct Program {
  std::vector<Channel> channels;
  // Where segments of the only channel end, the last one at its end. They claim that the program of P parts is that of
  // one part, each segment written P times, once for each part (chunk c of the one part is chunks c * P .. c * P + P - 1),
  // and that what is sent in a segment is received in it, on all ranks. Empty: it claims nothing.
  std::vector<std::size_t> segment_ends;
};

// What all ranks' programs of a plan have in common.
//
// For each ordered pair of ranks, all sends and signals of the pair belong to one channel of the sender and to one
// channel of the receiver: the pair's stream carries them in that order. The verifier checks it.
struct Header {
  std::string generator;  // "ring", "flat", ...
  Collective collective{};
  int ranks = 0;
  int nodes = 0;  // the ranks, and those who serve
  Rank root = 0;  // kBroadcast, kReduce, kGather, kScatter
  std::uint32_t chunks = 0;
  std::uint32_t scratch_chunks = 0;
  bool inputs_ready = false;  // see above
  Compression compression{};  // see above
  bool one_sided = false;  // some step names another rank's memory
  bool accumulates_once = false;  // every sum is made by one kReduce in rank order: halves round once, and the bits do
  // not depend on chunk borders
  // A block of an alltoall that waits at another rank than its own lies in scratch memory, and that rank does not know how
  // large blocks of others are: such a plan runs only where all blocks are equally large.
  bool needs_even_blocks() const { return collective == Collective::kAlltoall && scratch_chunks > 0; }
  bool operator==(const Header&) const = default;
};

// A plan as one rank has it.
struct Plan : Header {
  Rank self = 0;
  Program program;
  // The ranks that its steps name, in ascending order.
  std::vector<Rank> neighbours() const;
  // Whether all that it does with data is to add what the ranks give, each sum in one step: it may read that anywhere.
  bool sums_at_once() const;
};

// All ranks' programs: for proofs and predictions, of few ranks.
struct WholePlan : Header {
  std::vector<Program> programs;  // by node
};

}  // namespace ringcore::plan
