// What the parts of the engine share: its process sets, and how they are spoken of. Included by the files of
// this folder that implement Engine, and by nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/rank_list.hpp"
#include "engine/agreement_tree.hpp"
#include "engine/engine.hpp"
#include "engine/signatures.hpp"

namespace ringcore::engine {

// Changes with every incompatible change of records, plans or lanes.
constexpr std::uint64_t kProtocolVersion = 11;

// What all ranks must have set alike, because decisions depend on it.
struct Agreement {
  std::uint64_t protocol = kProtocolVersion;
  std::uint64_t fusion_threshold_bytes = 0;
  std::uint64_t partition_bytes = 0;
  std::uint32_t deterministic = 0;
  std::uint32_t elastic = 0;
  std::uint64_t serving = 0;
};

struct Engine::ProcessSet {
  ProcessSet(ProcessSetId id, std::vector<Rank> ranks, int self, Schedule schedule)
      : id(id),
        self(self),
        signatures(ranks.size()),
        negotiation(std::move(ranks), self),
        schedule(std::move(schedule)) {}
  ProcessSetId id;
  int self;  // index among the members, and behind them the servers
  std::unique_ptr<AgreementTree> tree;  // null where each sends to each, and behind its end
  std::optional<LogEnd> end;  // of a tree: nothing more is announced
  Nanoseconds ending_since = 0;
  bool unwound = false;  // ... and nothing more is decided
  Signatures signatures;  // where each sends to each: by member; else what this rank announces
  Negotiation negotiation;
  Schedule schedule;
  std::vector<Peer*> peers;  // by member, null at self
  std::vector<Peer*> servers;  // of the world, null at self: they take part in plans, and announce nothing
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> operations;  // not done; by name hash
  std::shared_ptr<Operation> join;
  std::vector<std::shared_ptr<Operation>> watches;  // see watches.cpp
  bool all_joined = false;  // `join` ends with what was released before
  std::optional<Rank> removed_by;  // the first member that has removed this set, which is here still
  std::uint64_t released = 0;  // operations so far, in all epochs
  bool undecided = false;  // entries were appended since the last decision
  bool unflushed = false;  // something was announced that may sit in an open bucket
  Nanoseconds announced_at = 0;  // the last operation of this rank
  std::uint64_t flushed_until = 0;  // position behind this rank's last wish to close the buckets
  bool heard = false;  // since the last look at timers a rank whose log is not so long has announced an operation
  Nanoseconds heard_at = 0;  // ... seen at such a look
  std::uint64_t filled_for = 0;  // length of the longest log for which a fill was last asked

  bool serves() const { return self >= static_cast<int>(peers.size()); }  // this rank is one of the servers
  bool joining() const { return join != nullptr && !all_joined; }

  Nanoseconds unanswered_for = 0;  // somebody has not filled its log for so long although it was asked
  std::uint64_t watched_round = 0;
  Nanoseconds waiting_since = 0;  // for others: 0 when it does not
  Nanoseconds common_wait = 0;  // along a tree, for a round: the last ones count most

  // To announce what this rank has announced.
  bool waits_for_others() const {
    return std::any_of(operations.begin(), operations.end(), [](const auto& item) {
      return item.second->state.load(std::memory_order_relaxed) == OperationState::kSubmitted;
    });
  }
  // Among the members that `signatures` counts.
  int describer() const { return tree == nullptr ? self : 0; }
  // Null for who is none of them, and for this rank.
  Peer* peer_of(const Peer& peer) const {
    const int index = member(peer.rank);
    return index < static_cast<int>(peers.size()) && peers[index] == &peer ? peers[index] : nullptr;
  }
  // Where it stands in plans; nothing for who takes no part in them, and for this rank.
  std::optional<int> node_of(const Peer& peer) const {
    if (peer_of(peer) != nullptr) return member(peer.rank);
    const auto server = std::ranges::find(servers, &peer);
    if (server == servers.end()) return std::nullopt;
    return static_cast<int>(peers.size()) + static_cast<int>(server - servers.begin());
  }
  int member(Rank rank) const {
    const auto& members = negotiation.members();
    return static_cast<int>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
  }
};

inline std::string title(const Operation& operation) {
  return operation.join
             ? "join"
             : std::string(name_of(operation.descriptor.collective)) + " '" + operation.descriptor.name + "'";
}

// Whether the data lies ready where the result goes: of a reducescatter, that is a part of the tensor.
inline bool is_in_place(const Operation& operation) {
  const Descriptor& descriptor = operation.descriptor;
  if (operation.output == nullptr || descriptor.has_free_rows()) return false;
  if (descriptor.collective != Collective::kReduceScatter || descriptor.is_group()) {
    return operation.output == operation.input;
  }
  return operation.output >= operation.input && operation.output < operation.input + operation.bytes();
}

// Whether the caller gave a place for a result of which only all ranks together know how many rows it has.
inline bool gives_output(const Operation& operation) {
  const Operation& first = operation.parts.empty() ? operation : *operation.parts.front();
  return first.output != nullptr && first.descriptor.has_free_rows();
}

inline std::uint8_t flags_of(const Operation& operation) {
  return (operation.awaited ? kFlush : 0) | (operation.only_thread ? kBlocked : 0) |
         (is_in_place(operation) ? kInPlace : 0) | (gives_output(operation) ? kHasOutput : 0);
}

// How many bytes member `member`, which has `rows` rows, sends along with its announcement of an eager operation: all
// that it puts in. SIZE_MAX where no memory holds so many rows.
std::size_t eager_bytes(const Descriptor& descriptor, std::uint64_t rows, int member);

// How many splits go along with it, and rows of an output.
inline std::size_t eager_splits(const Descriptor& descriptor, std::size_t members, bool has_output) {
  return (has_splits(descriptor.collective) ? members : 0) + (has_output ? 1 : 0);
}

// Whether the operation carries its data in the announcement. Where ranks answer differently, the data is not used.
bool is_eager(const Operation& operation, std::size_t members, std::size_t limit, bool registered);

}  // namespace ringcore::engine
