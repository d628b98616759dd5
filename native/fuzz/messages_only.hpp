// An MPI of two ranks without the real one: whoever derives from it says what becomes of messages.
#pragma once

#include <stdexcept>
#include <string>

#include "transport/mpi/world.hpp"

namespace ringcore::fuzz {

class MessagesOnly : public transport::MpiLibrary {
 public:
  using MpiComm = transport::MpiComm;
  using MpiRequest = transport::MpiRequest;

  std::string version() override { return "messages only"; }
  bool initialized() override { return true; }
  bool finalized() override { return false; }
  void initialize() override {}
  void finalize() override {}
  transport::MpiThreads threads() override { return transport::MpiThreads::kMultiple; }
  MpiComm world() override { return 0; }
  MpiComm from_fortran(int) override { return 0; }
  int size(MpiComm) override { return 2; }
  bool can_reduce(DType, ReduceOp) override { return false; }
  MpiRequest allreduce(MpiComm, std::byte*, std::size_t, DType, ReduceOp) override { return no_collectives(); }
  MpiRequest reduce_scatter(MpiComm, const std::byte*, std::byte*, std::span<const int>, DType, ReduceOp) override {
    return no_collectives();
  }
  MpiRequest broadcast(MpiComm, std::byte*, std::size_t, int) override { return no_collectives(); }
  MpiRequest allgather(MpiComm, std::byte*, std::span<const int>, std::span<const int>) override {
    return no_collectives();
  }

 private:
  static MpiRequest no_collectives() { throw std::runtime_error("only messages"); }
};

}  // namespace ringcore::fuzz
