// A simulated library that does whole collectives: the twin of MPI's, for the fault schedules.
//
// A collective ends when all members have started it, and then writes into the memory of all of them, also of those that
// have given it up meanwhile.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "plan/backend.hpp"
#include "transport/link.hpp"
#include "transport/sim/network.hpp"

namespace ringcore::simulation {

// Where the members of a process set meet, lane by lane, in order.
class SimMeetings {
 public:
  explicit SimMeetings(int members) : members_(members) {}

  struct Meeting {
    std::vector<plan::Operands> operands;  // of those that have come, by the order of their coming
    std::vector<int> who;
    bool ended = false;
  };

  // The next one of the member in that lane.
  std::shared_ptr<Meeting> join(int member, int lane, const plan::Query& query, const plan::Operands& operands);

 private:
  struct Lane {
    std::deque<std::shared_ptr<Meeting>> meetings;
    std::vector<std::size_t> next;  // by member
  };

  int members_;
  std::array<Lane, transport::kLaneCount> lanes_;
};

std::unique_ptr<plan::Backend> make_sim_library(std::shared_ptr<SimMeetings> meetings, int self,
                                                transport::SimNetwork& network);

}  // namespace ringcore::simulation
