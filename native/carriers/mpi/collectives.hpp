// Whole collectives by MPI: MPI_Iallreduce and its kin.
#pragma once

#include <memory>

#include "plan/backend.hpp"
#include "transport/mpi/world.hpp"

namespace ringcore::carriers {

// For the process set of all ranks of `world`, in their order.
std::unique_ptr<plan::Backend> make_mpi_backend(std::shared_ptr<transport::MpiWorld> world);

}  // namespace ringcore::carriers
