// What elastic jobs are asked when they are over.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>

#include "../from_environment.hpp"
#include "elastic_job.hpp"

namespace ringcore::simulation {

// How many events a job has in which nothing happens to anybody.
inline int events_of(const ElasticOptions& options) {
  ElasticJob job(options);
  REQUIRE(job.run() == "");
  return job.events();
}

// Something happens to a job at every so many-th of its events; at each of them where the session `sweeps` runs the test, and
// at few under sanitizers.
inline int every(int events) {
  static const auto asked = static_cast<int>(testing::from_environment("RINGCORE_EVENTS_APART", 0));
  return asked > 0 ? asked : events;
}

// All but these have done all steps. Where nobody sees processes end, those who are left when the first have gone may be too
// few to tell that they are not the part that was cut off: then they say so.
inline void check_that_others_finish(const ElasticJob& job, const ElasticOptions& options,
                                     std::initializer_list<Rank> lost) {
  int gone = 0;
  for (Rank rank = 0; rank < options.ranks; ++rank) gone += job.finished(rank) ? 1 : 0;
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    if (std::find(lost.begin(), lost.end(), rank) != lost.end() || job.finished(rank)) continue;
    const auto failure = job.engine(rank).failure();
    const bool may_be_cut_off = !options.share_memory && !options.witness && gone > 0;
    REQUIRE(may_be_cut_off);
    REQUIRE(failure != nullptr);
    REQUIRE(failure->kind() == ErrorKind::kEvicted);
  }
}

}  // namespace ringcore::simulation
