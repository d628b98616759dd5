// One rank's execution of one plan over links: a state machine that never blocks.
//
// In three files: executor.cpp runs the steps, transfers.cpp is about what is sent and how transfers share a lane,
// receiving.cpp about what arrives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/types.hpp"
#include "plan/plan.hpp"
#include "plan/run.hpp"
#include "transport/link.hpp"

namespace ringcore::carriers {

using plan::ChunkRef;
using plan::Operands;
using plan::Plan;
using plan::Program;
using plan::Run;
using plan::Step;

// Every transfer starts with this on its lane.
struct TransferHeader {
  std::uint32_t magic = kMagic;
  std::uint32_t run = 0;
  std::uint64_t bytes = 0;  // of the payload; 0 also for a signal
  static constexpr std::uint32_t kMagic = 0x52494e47;
};
static_assert(sizeof(TransferHeader) == 16);

// Takes the transfer at the front of the lane out of the way, unless its run has begun to read it: the run finds it when
// it gets there. Ranks run the tasks of several process sets, and those with a priority, in different orders; without this a transfer that nobody
// takes yet could hold up the very one that somebody waits for. True if anything moved. Throws Error{kProtocol}.
bool set_aside(transport::Link& link, int lane, Rank peer);

class PlanRun final : public Run {
 public:
  // `links`: by rank, null at self; only those that the plan names are looked at. `id` tells this run from others that use
  // the same lane at the same time (of other process sets, or overtaken); all ranks give it the same one. `channel`: of
  // messages, the process set's own. Plan and links outlive the run.
  PlanRun(const Plan& plan, Operands operands, std::span<transport::Link* const> links, int lane, std::uint32_t id,
          int channel = 0);

  void time_steps(const Clock& clock) override;
  bool progress() override;
  bool done() const override;
  bool sending() const override;
  void hold(bool held) override { held_ = held; }
  bool waits_for(Rank rank) const override;
  std::string waiting_for() const override;
  bool in_use() const override;

 private:
  using Message = transport::Link::Message;
  static constexpr std::size_t kMessagesAhead = 2;  // receives of a step that are under way at the same time
  // What goes as messages goes in pieces of this size, so that one is reduced, out of the cache, while the next one
  // comes. A multiple of every element. Over TCP, Open MPI's request for the next piece waits behind what it has to send
  // itself, as much as has been asked for: with pieces of 1 MiB links of 1 Gbit/s stand still for 40 % of the time.
  static constexpr std::size_t kMessageBytes = 256 * 1024;
  struct ChannelState {
    std::size_t next = 0;  // step
    std::size_t done_bytes = 0;  // of that step
    std::size_t expected_bytes = 0;  // of that step: by the messages that were done or are in `incoming`
    std::deque<Message> incoming;
    std::vector<std::byte> landed;  // what arrives of several chunks, or quantised
    std::array<std::unique_ptr<std::byte[]>, kMessagesAhead> rooms;  // where what is to be reduced arrives
    std::size_t taken_values = 0;  // of what arrives quantised
    void advance() {
      ++next;
      done_bytes = expected_bytes = taken_values = 0;
    }
  };
  // A transfer to one peer that has been started and is not yet written.
  struct Outgoing {
    TransferHeader header;
    const std::byte* payload = nullptr;
    std::size_t sent = 0;  // bytes of both
    std::uint32_t* busy = nullptr;  // counts the unsent transfers of the chunk
    std::unique_ptr<std::byte[]> copy;  // the payload, where that is not the chunk's own memory
  };
  struct Outbound {
    Message message = 0;
    std::uint32_t* busy = nullptr;  // null but for the last one of a transfer
    std::unique_ptr<std::byte[]> copy;  // as above, of a whole transfer
  };
  // A rank that a step names.
  struct Peer {
    Rank rank = 0;
    transport::Link* link = nullptr;
    std::vector<Outgoing> outgoing;
    std::size_t next = 0;
    std::deque<Outbound> messages;  // that are under way
    bool sending() const { return next < outgoing.size() || !messages.empty(); }
    std::optional<std::vector<std::byte>> aside;  // the accepted transfer, if it had been set aside
  };

  void find_peers(std::span<transport::Link* const> links);
  // The index of a rank that some step names; else that of a later one.
  std::size_t index_of(Rank rank) const;
  Peer& peer_of(Rank rank) { return peers_[index_of(rank)]; }
  bool send(Peer& peer);
  bool send_to_all();
  void send_messages(Peer& peer, Outgoing& transfer) const;
  bool settle(Peer& peer) const;
  bool step(std::size_t channel);
  void note_step(std::size_t channel, std::size_t index);
  void count_traffic(const Step& step) const;
  std::size_t values_received(const Step& step) const;
  std::size_t sent_bytes(const Step& step, std::size_t values) const;
  std::byte* landing(const Step& step, ChannelState& state, std::size_t total) const;
  void end_receive(const Step& step, ChannelState& state);
  void complete(const Step& step, ChannelState& state);
  bool receive(const Step& step, ChannelState& state);
  bool receive_messages(const Step& step, ChannelState& state, transport::Link& link, std::size_t total);
  bool reduce_arrived(const Step& step, ChannelState& state, transport::Link& link, std::size_t bytes);
  void receive_aside(const Step& step, ChannelState& state, std::span<const std::byte> payload) const;
  void add(const Step& step, const ChunkRef& target, std::size_t begin, std::span<const std::byte> received) const;
  void take_quantised(const Step& step, ChannelState& state) const;
  void end_transfer(Peer& peer);
  bool accept_header(Peer& peer, std::size_t bytes);
  bool reduce(const Step& step, ChannelState& state);
  void post_chunk(const Step& step);
  void post_together(const Step& step);
  void post_quantised(const Step& step);
  void post(Rank rank, const std::byte* payload, std::size_t bytes, std::uint32_t* busy);
  void post_copy(Rank rank, std::unique_ptr<std::byte[]> copy, std::size_t bytes);
  bool may_run(const Step& step) const;
  std::byte* address(const ChunkRef& ref) const;
  std::byte* address_of_data(const ChunkRef& ref) const;
  bool lies_in_input(const ChunkRef& ref) const;
  const std::byte* address_of_source(const ChunkRef& ref) const;
  std::byte* address_of_input(const ChunkRef& ref) const;
  std::uint32_t as_received(const ChunkRef& input) const;
  std::uint32_t parts() const { return plan_.chunks / static_cast<std::uint32_t>(plan_.ranks); }  // of a block
  std::size_t bytes(const ChunkRef& ref) const;
  std::size_t bytes(const std::vector<ChunkRef>& refs) const;
  std::uint32_t& unsent(const ChunkRef& ref);

  const Plan& plan_;
  const Program& program_;
  Rank self_;
  std::span<transport::Link* const> links_;
  Operands operands_;
  int lane_;
  std::uint32_t id_;
  int channel_;
  std::size_t element_;
  bool held_ = false;
  std::vector<ChannelState> channels_;
  std::vector<Peer> peers_;  // in the order of their ranks
  std::vector<std::uint32_t> unsent_;  // by buffer and chunk
  // By chunk of kData: whether nothing was written to it, and what this rank gives for it is still in `input` only. Empty
  // where it lies in kData from the beginning.
  std::vector<bool> in_input_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
  const Clock* clock_ = nullptr;  // null: steps are not timed
  std::vector<Nanoseconds> step_begins_;  // by channel
};

// "send chunk 3 to rank 1", "wait for rank 2", ...
std::string describe(const Step& step);

}  // namespace ringcore::carriers
