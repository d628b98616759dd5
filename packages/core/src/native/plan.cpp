// Plans of all ranks, as programs of Python write and read them.
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "carriers/plans/executor.hpp"
#include "network.hpp"
#include "plan/cost.hpp"
#include "plan/forms/binary.hpp"
#include "plan/forms/text.hpp"
#include "plan/forms/whole.hpp"
#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

using plan::WholePlan;
// (rank, buffer, chunk)
using ChunkTuple = std::tuple<Rank, int, std::uint32_t>;

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::kInvalidArgument, why); }

void make_plan(WholePlan* self, std::string generator, int collective, int ranks, int serving, Rank root,
               std::uint32_t chunks, std::uint32_t scratch_chunks, bool accumulates_once) {
  WholePlan made;
  made.generator = std::move(generator);
  made.collective = static_cast<Collective>(collective);
  made.ranks = ranks;
  made.nodes = ranks + serving;
  made.root = root;
  made.chunks = chunks;
  made.scratch_chunks = scratch_chunks;
  made.accumulates_once = accumulates_once;
  if (const auto flaw = plan::flaw_of_header(made)) refuse(*flaw);
  made.programs.resize(static_cast<std::size_t>(made.nodes));
  new (self) WholePlan(std::move(made));
}

std::vector<plan::ChunkRef> refs_of(const std::vector<ChunkTuple>& chunks) {
  std::vector<plan::ChunkRef> refs;
  for (const auto& [rank, buffer, chunk] : chunks) {
    if (buffer < 0 || buffer >= static_cast<int>(plan::kBufferNames.size())) refuse("a chunk lies in no such buffer");
    refs.push_back({.rank = rank, .buffer = static_cast<plan::Buffer>(buffer), .chunk = chunk});
  }
  return refs;
}

// The index of the step in its channel.
std::size_t append(WholePlan& self, Rank rank, std::size_t channel, const std::string& kind, Rank peer,
                   const std::vector<ChunkTuple>& sources, const std::vector<ChunkTuple>& targets, bool final,
                   int after_channel, int after_step) {
  if (rank < 0 || rank >= self.nodes) {
    refuse("the plan has no rank " + std::to_string(rank) + ": it has 0 to " + std::to_string(self.nodes - 1));
  }
  if (channel >= plan::kMostChannels) {
    refuse("a rank has channels 0 to " + std::to_string(plan::kMostChannels - 1) + ", not " + std::to_string(channel));
  }
  std::size_t code = 0;
  while (code < plan::kStepNames.size() && plan::kStepNames[code] != kind) ++code;
  if (code == plan::kStepNames.size()) refuse("there is no step '" + kind + "'");
  std::vector<plan::Channel>& channels = self.programs[static_cast<std::size_t>(rank)].channels;
  if (channels.size() <= channel) channels.resize(channel + 1);
  if (channels[channel].size() == plan::kMostSteps) {
    refuse("a channel has at most " + std::to_string(plan::kMostSteps) + " steps; use fewer chunks");
  }
  channels[channel].push_back({.kind = static_cast<plan::StepKind>(code),
                               .peer = peer,
                               .sources = refs_of(sources),
                               .targets = refs_of(targets),
                               .final = final,
                               .after_channel = after_channel,
                               .after_step = after_step});
  return channels[channel].size() - 1;
}

WholePlan read_plan(nb::bytes bytes) {
  const auto* const begin = static_cast<const char*>(bytes.data());
  const std::span<const std::byte> all = std::as_bytes(std::span(begin, bytes.size()));
  return plan::is_binary(all) ? plan::from_binary(all) : plan::from_text({begin, bytes.size()});
}

nb::bytes binary_of(const WholePlan& self) {
  const std::vector<std::byte> bytes = plan::to_binary(self);
  return nb::bytes(bytes.data(), bytes.size());
}

std::string hash_text(const WholePlan& self) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::uint64_t hash = hash_of(plan::to_binary(self));
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text.push_back(kDigits[hash >> shift & 15U]);
  return text;
}

std::optional<std::string> flaw_of(const WholePlan& self, std::vector<int> host_of) {
  if (plan::steps_of(self) > plan::kMostSteps) {
    return "the plan has " + std::to_string(plan::steps_of(self)) + " steps; " + std::to_string(plan::kMostSteps) +
           " can be verified: use fewer chunks";
  }
  plan::Topology topology;
  topology.host_of = std::move(host_of);
  topology.serving = self.nodes - self.ranks;
  if (topology.nodes() != self.nodes) {
    return "the plan is for " + std::to_string(self.nodes) + " nodes, but there are " +
           std::to_string(topology.nodes());
  }
  return plan::verify(self, topology);
}

double predict(const WholePlan& self, std::vector<int> host_of, const NetworkTuple& network, double message_s,
               std::size_t nbytes) {
  const plan::Topology topology = topology_of(std::move(host_of), self.nodes - self.ranks, network, message_s);
  // What is wrong need not come to an end.
  if (const auto flaw = flaw_of(self, topology.host_of)) refuse("the plan is wrong: " + *flaw);
  return plan::predict_seconds(plan::excerpt_of(self), topology, static_cast<double>(nbytes) / self.chunks,
                               plan::CostModel{});
}

std::vector<std::vector<std::string>> program_of(const WholePlan& self, Rank rank) {
  std::vector<std::vector<std::string>> channels;
  for (const plan::Channel& channel : self.programs.at(static_cast<std::size_t>(rank)).channels) {
    std::vector<std::string>& steps = channels.emplace_back();
    for (const plan::Step& step : channel) steps.push_back(carriers::describe(step));
  }
  return channels;
}

std::tuple<std::size_t, std::size_t, std::vector<Rank>> traffic_of(const WholePlan& self, Rank rank) {
  std::size_t sends = 0;
  std::size_t receives = 0;
  std::set<Rank> peers;
  for (const plan::Channel& channel : self.programs.at(static_cast<std::size_t>(rank)).channels) {
    for (const plan::Step& step : channel) {
      if (step.peer >= 0) peers.insert(step.peer);
      if (step.kind == plan::StepKind::kSend) ++sends;
      if (step.kind == plan::StepKind::kRecv || step.kind == plan::StepKind::kRecvReduce) ++receives;
    }
  }
  return {sends, receives, {peers.begin(), peers.end()}};
}

}  // namespace

void register_plan(nb::module_& module) {
  module.attr("MOST_PLAN_STEPS") = plan::kMostSteps;
  nb::class_<WholePlan>(module, "Plan", "A plan with all ranks' programs; see plan/forms/whole.hpp.")
      .def("__init__", &make_plan, nb::arg("generator"), nb::arg("collective"), nb::arg("ranks"), nb::arg("serving"),
           nb::arg("root"), nb::arg("chunks"), nb::arg("scratch_chunks"), nb::arg("accumulates_once"))
      .def("append", &append, nb::arg("rank"), nb::arg("channel"), nb::arg("kind"), nb::arg("peer"), nb::arg("sources"),
           nb::arg("targets"), nb::arg("final"), nb::arg("after_channel"), nb::arg("after_step"),
           "The index of the new step in its channel. Chunks are (rank, buffer, chunk).")
      .def_static("read", &read_plan, nb::arg("data"), "Of the text or the binary form.")
      .def("text", &plan::to_text)
      .def("binary", &binary_of)
      .def_prop_ro("hash", &hash_text)
      .def("flaw", &flaw_of, nb::arg("host_of"), nb::call_guard<nb::gil_scoped_release>(),
           "What the verifier says, where the nodes are on these hosts.")
      .def("predict", &predict, nb::arg("host_of"), nb::arg("network"), nb::arg("message_s"), nb::arg("nbytes"),
           nb::call_guard<nb::gil_scoped_release>(), "Seconds until the last rank is done, see network.hpp.")
      .def("program", &program_of, nb::arg("rank"), "By channel: the steps of a rank in words.")
      .def("traffic", &traffic_of, nb::arg("rank"), "(chunks that it sends, that it receives, with whom)")
      .def_prop_ro("steps", &plan::steps_of)
      .def_ro("generator", &WholePlan::generator)
      .def_prop_ro("collective", [](const WholePlan& self) { return std::string(name_of(self.collective)); })
      .def_ro("ranks", &WholePlan::ranks)
      .def_ro("nodes", &WholePlan::nodes)
      .def_ro("root", &WholePlan::root)
      .def_ro("chunks", &WholePlan::chunks)
      .def_ro("scratch_chunks", &WholePlan::scratch_chunks)
      .def_ro("inputs_ready", &WholePlan::inputs_ready)
      .def_ro("one_sided", &WholePlan::one_sided)
      .def_ro("accumulates_once", &WholePlan::accumulates_once);
}

}  // namespace ringcore::python
