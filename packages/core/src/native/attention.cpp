// What the engine tells Python beside the operations: warnings, lost ranks, its timeline.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "runtime.hpp"
#include "runtime/timeline_file.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

nb::list take_spans(Runtime& runtime, std::vector<engine::Span> (Runtime::*take)()) {
  std::vector<engine::Span> spans;
  {
    const nb::gil_scoped_release released;
    spans = (runtime.*take)();
  }
  nb::list list;
  for (const engine::Span& span : spans) {
    list.append(nb::make_tuple(span.name, span.activity, span.lane, span.channel, span.begin, span.end, span.bytes));
  }
  return list;
}

std::tuple<std::vector<std::string>, bool, std::optional<Rank>, std::vector<nb::bytes>> take_attention(
    PythonRuntime& self) {
  Runtime::Attention attention;
  {
    const nb::gil_scoped_release released;
    attention = self.get().take_attention();
  }
  std::vector<nb::bytes> for_witness;
  for (const auto& message : attention.for_witness) for_witness.emplace_back(message.data(), message.size());
  return {attention.warnings, attention.stacks_wanted, attention.lost_rank, for_witness};
}

nb::dict statistics(PythonRuntime& self) {
  Runtime::Statistics found;
  {
    const nb::gil_scoped_release released;
    found = self.get().statistics();
  }
  nb::list waits;
  for (const engine::Pending& pending : found.pending) {
    const double seconds = static_cast<double>(found.now - pending.since) / static_cast<double>(kSecond);
    waits.append(nb::make_tuple(pending.title, seconds, pending.released, pending.missing));
  }
  nb::dict traffic;
  for (const auto& [transport, bytes] : found.traffic) {
    traffic[transport.c_str()] = nb::make_tuple(bytes.sent, bytes.received);
  }
  nb::dict all;
  all["operations"] = found.operations;
  all["waits"] = waits;
  all["traffic"] = traffic;
  return all;
}

}  // namespace

void register_attention(nb::class_<PythonRuntime>& runtime) {
  runtime
      .def(
          "start_timeline", [](PythonRuntime& self) { self.get().start_timeline(); },
          nb::call_guard<nb::gil_scoped_release>(), "Keeps what is recorded for take_timeline.")
      .def(
          "write_timeline",
          [](PythonRuntime& self, const std::string& path, Rank rank, Nanoseconds origin_ns) {
            self.get().start_timeline(std::make_unique<TimelineFile>(path, rank, origin_ns));
          },
          nb::arg("path"), nb::arg("rank"), nb::arg("origin_ns"), nb::call_guard<nb::gil_scoped_release>(),
          "Writes what is recorded to a file of this rank, as events, until stop_timeline.")
      .def_prop_ro(
          "timeline_failure", [](PythonRuntime& self) { return self.get().timeline_failure(); },
          nb::call_guard<nb::gil_scoped_release>(), "Why nothing more is written; empty: it is.")
      .def(
          "take_timeline", [](PythonRuntime& self) { return take_spans(self.get(), &Runtime::take_timeline); },
          "Spans since start_timeline, or the last call: (name, activity, lane, channel or -1, begin ns, end ns, "
          "bytes).")
      .def(
          "stop_timeline", [](PythonRuntime& self) { return take_spans(self.get(), &Runtime::stop_timeline); },
          "The spans that are left, as those of take_timeline.")
      .def(
          "statistics", &statistics,
          "{operations: that have ended, waits: [(title, seconds, whether all ranks have submitted it, ranks that have "
          "not)], traffic: {transport: (bytes sent, received)}}")
      .def_prop_ro(
          "waited_for_others",
          [](PythonRuntime& self) {
            return static_cast<double>(self.get().waited_for_others()) / static_cast<double>(kSecond);
          },
          nb::call_guard<nb::gil_scoped_release>(),
          "For how many seconds this rank of an elastic job has waited, with nothing more to announce, until all had "
          "announced what it had.")
      .def(
          "wait_for_attention",
          [](PythonRuntime& self, double limit_s) { return self.get().wait_for_attention(limit_of(limit_s)); },
          nb::arg("limit_s"), nb::call_guard<nb::gil_scoped_release>())
      .def("take_attention", &take_attention,
           "(warnings to log, whether a peer wants this rank's stacks, as lost_rank, messages for the witness)")
      .def_prop_ro(
          "lost_rank", [](PythonRuntime& self) { return self.get().lost_rank(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "The rank whose end has made an operation of this rank fail; None: none has.")
      .def(
          "reply_stacks", [](PythonRuntime& self, const std::string& text) { self.get().reply_stacks(text); },
          nb::arg("text"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "transports", [](PythonRuntime& self) { return self.get().transports(); },
          "The transport to each rank: 'self', 'shm', 'tcp' or 'mpi'.");
}

}  // namespace ringcore::python
