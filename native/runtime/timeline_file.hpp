// Writes what is recorded to a file of one rank, as events that Perfetto and chrome://tracing read.
//
// Each operation is there as soon as it has ended, with one system call: nothing is lost with the process, and nothing
// is kept in memory. The file is a JSON array that may lack its end, one event a line: those of several ranks are put
// together without looking into them.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "base/owned.hpp"
#include "base/types.hpp"
#include "engine/timeline.hpp"

namespace ringcore {

class TimelineFile : public engine::SpanSink {
 public:
  // `origin`: the moment that all ranks count from, by this rank's clock. Throws Error{kResource}.
  TimelineFile(const std::string& path, Rank rank, Nanoseconds origin);

  void add(const engine::Span& span) override;
  void flush() override;
  std::string failure() const override { return failure_; }

 private:
  void add_row(const engine::Span& span);

  Fd file_;
  std::string failure_;
  Rank rank_;
  Nanoseconds origin_;
  std::string text_;
  std::set<std::pair<int, int>> rows_;  // that have their names
};

}  // namespace ringcore
