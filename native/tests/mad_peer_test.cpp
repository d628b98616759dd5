// Records that a peer sends which has gone mad: an error that names it, whatever they are.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/record.hpp"
#include "sim_job.hpp"

namespace ringcore::testing {

using engine::RecordType;

TEST_CASE("what only elastic jobs say is an error in another one that names who has said it") {
  for (const RecordType type :
       {RecordType::kView, RecordType::kLanes, RecordType::kArrival, RecordType::kLetIn, RecordType::kCarriedOut}) {
    CAPTURE(static_cast<int>(type));
    SimJob job(2);
    std::vector<float> data{1.0F};
    const auto waits = SimJob::allreduce("waits", data);
    job.submit(0, waits);
    REQUIRE(job.run_until([&] { return job.engine(0).membership().peer(1)->greeted; }));
    const std::vector<std::byte> payload(64);
    std::vector<std::byte> record = engine::build_record({.type = type}, {}, {}, payload);
    reinterpret_cast<engine::RecordHeader*>(record.data())->sequence =
        job.engine(0).membership().peer(1)->received_records;
    REQUIRE(job.network().inject(1, 0, transport::kControlLane, record));
    REQUIRE(job.run_until([&] { return waits->done(); }));
    CHECK(waits->error->kind() == ErrorKind::kProtocol);
    CHECK(std::string(waits->error->what()).find("rank 1: sent a record that only elastic jobs have") == 0);
  }
}

}  // namespace ringcore::testing
