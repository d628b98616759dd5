// A rank's part of a job: how Python says what it is made of, its process sets and lanes, and its end.
#include "runtime/job.hpp"

#include <algorithm>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "aggregation.hpp"
#include "base/error.hpp"
#include "capi/capi.hpp"
#include "engine/set_numbers.hpp"
#include "network.hpp"
#include "runtime.hpp"
#include "tls.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

// (rank, transport, descriptors, the peer's segment or -1, a secret for each descriptor or none)
using PeerTuple = std::tuple<Rank, std::string, std::vector<int>, int, std::vector<nb::bytes>>;

// (host, port, the switch's key of 16 bytes, session, whether sums are of integers, seconds of silence)
using SwitchTuple = std::tuple<std::string, std::uint16_t, nb::bytes, std::uint64_t, bool, double>;

carriers::SwitchSettings switch_of(const SwitchTuple& told) {
  const auto& [host, port, key, session, integers, silence_s] = told;
  return {.host = host,
          .port = port,
          .key = switch_key(key),
          .session = session,
          .integers = integers,
          .silence = limit_of(silence_s)};
}

transport::Transport transport_of(const std::string& name) {
  const auto* const found =
      std::ranges::find(transport::kTransports, name, [](const auto& each) { return each.first; });
  if (found != transport::kTransports.end()) return found->second;
  throw Error(ErrorKind::kInvalidArgument, "no transport is called '" + name + "'");
}

std::vector<PeerConnection> connections_of(const std::vector<PeerTuple>& peers) {
  std::vector<PeerConnection> connections;
  for (const auto& [rank, name, fds, segment_fd, secrets] : peers) {
    connections.push_back({.rank = rank,
                           .transport = transport_of(name),
                           .socket = Fd(fds.empty() ? -1 : fds.front()),
                           .segment = Fd(segment_fd),
                           .secrets = tls_secrets(secrets)});
  }
  return connections;
}

void make_runtime(PythonRuntime* self, Rank rank, int size, std::uint32_t epoch, std::shared_ptr<HostMemory> memory,
                  const std::vector<PeerTuple>& peers, std::vector<int> host_of, Rank local_rank, int local_size,
                  std::size_t fusion_threshold_bytes, std::size_t partition_bytes, std::size_t credit_bytes,
                  std::size_t eager_limit_bytes, bool deterministic, double timeout_s, double stall_warning_s,
                  double heartbeat_s, bool elastic, double elastic_timeout_s, bool has_witness, double start_timeout_s,
                  double spin_s, bool nccl_shares_gpus, std::shared_ptr<transport::MpiWorld> mpi, bool joins,
                  const std::optional<NetworkTuple>& network, int servers,
                  const std::optional<SwitchTuple>& aggregation) {
  JobConfig config;
  config.rank = rank;
  config.size = size;
  config.serving = servers;
  config.joins = joins;
  config.epoch = epoch;
  config.peers = connections_of(peers);
  config.host_of = std::move(host_of);
  if (network) config.network = links_of(*network);
  if (aggregation) config.aggregation = switch_of(*aggregation);
  config.memory = std::move(memory);
  config.mpi = std::move(mpi);
  config.spin = limit_of(spin_s);
  config.nccl_shares_gpus = nccl_shares_gpus;
  config.local_size = local_size;
  config.settings.execution.fusion_threshold_bytes = fusion_threshold_bytes;
  config.settings.execution.partition_bytes = partition_bytes;
  config.settings.execution.credit_bytes = credit_bytes;
  config.settings.execution.deterministic = deterministic;
  config.settings.eager_limit_bytes = eager_limit_bytes;
  config.settings.timeout = limit_of(timeout_s);
  config.settings.stall_warning = limit_of(stall_warning_s);
  config.settings.heartbeat = limit_of(heartbeat_s);
  config.settings.elastic = elastic;
  config.settings.elastic_timeout = limit_of(elastic_timeout_s);
  config.has_witness = has_witness;
  config.settings.start = limit_of(start_timeout_s);
  new (self) PythonRuntime(std::move(config));
  self->epoch = epoch;
  capi::begin_epochs(epoch);
  capi::set_runtime(self->job().watch_runtime(), {.local_rank = local_rank, .local_size = local_size},
                    self->job().pool());
}

bool attach_lane(PythonRuntime& self, Rank peer, int lane, const std::vector<int>& fds,
                 const std::vector<nb::bytes>& secrets) {
  std::vector<Fd> sockets;
  for (const int fd : fds) sockets.emplace_back(fd);
  const std::vector<transport::TlsSecret> of_lane = tls_secrets(secrets);
  const nb::gil_scoped_release released;
  return self.job().attach_lane(peer, lane, std::move(sockets), of_lane);
}

void accept_change(PythonRuntime& self, std::uint32_t epoch, Rank local_rank, int local_size) {
  {
    const nb::gil_scoped_release released;
    self.get().accept_change(epoch);
  }
  self.epoch = epoch;
  capi::set_runtime(self.job().watch_runtime(), {.local_rank = local_rank, .local_size = local_size},
                    self.job().pool());
}

void hear_witness(PythonRuntime& self, const nb::bytes& message) {
  const std::span bytes(static_cast<const std::byte*>(message.data()), message.size());
  const nb::gil_scoped_release released;
  self.get().hear_witness(bytes);
}

// Without Python's lock; raises what has interrupted it.
void drive(PythonRuntime& self, const std::function<void(Runtime&)>& waits) {
  Runtime& runtime = self.get();
  {
    const nb::gil_scoped_release released;
    waits(runtime);
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

void leave(PythonRuntime& self, const std::string& reason) {
  drive(self, [&](Runtime&) { self.job().leave(reason, python_interrupted); });
}

void meet(PythonRuntime& self, const PeerTuple& peer) {
  PeerConnection connection = std::move(connections_of({peer}).front());
  const nb::gil_scoped_release released;
  self.job().meet(std::move(connection));
}

void check(PythonRuntime& self) {
  const std::shared_ptr<const Error> failure = self.get().failure();
  if (failure != nullptr) throw *failure;
}

}  // namespace

void register_first_links(nb::module_& module) {
  nb::list transports;
  for (const auto& [name, transport] : transport::kTransports) transports.append(nb::str(name.data(), name.size()));
  module.attr("TRANSPORTS") = nb::tuple(transports);
  module.attr("DIRECT_MEMBERS") = engine::EngineSettings{}.direct_members;
  module.attr("MOST_AGREED_SETS") = static_cast<int>(engine::SetNumbers::kMaxAgreed);
  module.attr("PLACES_TO_COME") = transport::kPlacesToCome;
  module.attr("DATA_LANES") = transport::kLaneCount - transport::kFirstDataLane;
  module.def(
      "connected_at_start",
      [](const std::vector<int>& host_of, Rank rank) {
        return engine::connected_at_start(host_of, rank, engine::EngineSettings{}.direct_members);
      },
      nb::arg("host_of"), nb::arg("rank"),
      "With whom a rank is connected before anybody needs it: with all others in jobs of up to DIRECT_MEMBERS.");
}

void register_job(nb::class_<PythonRuntime>& runtime) {
  runtime
      .def("__init__", &make_runtime, nb::arg("rank"), nb::arg("size"), nb::arg("epoch"), nb::arg("memory").none(),
           nb::arg("peers"), nb::arg("host_of"), nb::arg("local_rank"), nb::arg("local_size"), nb::kw_only(),
           nb::arg("fusion_threshold_bytes"), nb::arg("partition_bytes"), nb::arg("credit_bytes"),
           nb::arg("eager_limit_bytes"), nb::arg("deterministic"), nb::arg("timeout_s"), nb::arg("stall_warning_s"),
           nb::arg("heartbeat_s"), nb::arg("elastic"), nb::arg("elastic_timeout_s"), nb::arg("has_witness"),
           nb::arg("start_timeout_s"), nb::arg("spin_s"), nb::arg("nccl_shares_gpus"), nb::arg("mpi") = nb::none(),
           nb::arg("joins") = false, nb::arg("network") = nb::none(), nb::arg("servers") = 0,
           nb::arg("aggregation") = nb::none())
      .def(
          "members",
          [](PythonRuntime& self, std::optional<std::uint32_t> epoch) {
            const nb::gil_scoped_release released;
            return self.get().members(epoch);
          },
          nb::arg("epoch") = nb::none(),
          "An epoch of an elastic job, None: the present one, and its members, by rank, as ranks of the first epoch.")
      .def(
          "excuse", [](PythonRuntime& self, std::vector<Rank> ranks) { self.get().excuse(std::move(ranks)); },
          nb::arg("ranks"), nb::call_guard<nb::gil_scoped_release>(),
          "These are busy with each other, for as long as it takes: others that wait for them alone do not take them "
          "for "
          "late, till all have come to an operation again.")
      .def(
          "fail_on_change", [](PythonRuntime& self, bool fails) { self.get().fail_on_change(fails); }, nb::arg("fails"),
          nb::call_guard<nb::gil_scoped_release>(),
          "Whether what is under way fails when ranks are lost: the program goes back to an earlier state then. Else "
          "it "
          "is done again where that is possible.")
      .def("meet", &meet, nb::arg("peer"),
           "Takes the descriptors: whoever is connected with this rank so, and has taken a place behind all others, "
           "wants to join the job.")
      .def(
          "hosts_of",
          [](PythonRuntime& self, const std::vector<engine::Place>& places) {
            const nb::gil_scoped_release released;
            return self.get().hosts_of(places);
          },
          nb::arg("places"), "Of each place, the number of the group of ranks that share memory.")
      .def(
          "arrivals", [](PythonRuntime& self) { return self.get().arrivals(); },
          nb::call_guard<nb::gil_scoped_release>(), "The places of those who want to join, and have met all ranks.")
      .def(
          "is_turned_away", [](PythonRuntime& self, engine::Place place) { return self.get().is_turned_away(place); },
          nb::arg("place"), nb::call_guard<nb::gil_scoped_release>(),
          "Whether who was met at this place, and is no member, will be none.")
      .def(
          "let_in",
          [](PythonRuntime& self, engine::Place place) {
            drive(self, [place](Runtime& runtime) { runtime.let_in(place, python_interrupted); });
          },
          nb::arg("place"),
          "Waits until all ranks have called it and who wants the place has joined them, or cannot any more.")
      .def(
          "become_member",
          [](PythonRuntime& self) { drive(self, [](Runtime& runtime) { runtime.become_member(python_interrupted); }); },
          "Waits until the others have let this process in.")
      .def(
          "await_devices",
          [](PythonRuntime& self) { drive(self, [](Runtime& runtime) { runtime.await_devices(python_interrupted); }); },
          "Waits until GPUs have ended what this rank has launched on them. Raises why the results are none.")
      .def_prop_ro(
          "told_epoch", [](PythonRuntime&) { return capi::told_epoch(); },
          "The newest epoch of the ranks whose results a compiled program was given.")
      .def("accept_change", &accept_change, nb::arg("epoch"), nb::arg("local_rank"), nb::arg("local_size"),
           "The caller knows who the members are since that epoch: what is submitted from now on is theirs.")
      .def("hear_witness", &hear_witness, nb::arg("message"), "What the launcher says as the witness, see Witness.")
      .def(
          "lose_witness", [](PythonRuntime& self) { self.get().lose_witness(); },
          nb::call_guard<nb::gil_scoped_release>(), "The launcher cannot be asked any more.")
      .def("check", &check, "Raises why the engine has failed, if it has.")
      .def(
          "serve",
          [](PythonRuntime& self) { drive(self, [](Runtime& runtime) { runtime.serve(python_interrupted); }); },
          "On a server: takes part in what the ranks do, until all of them have left. Raises why the job has failed.")
      .def("leave", &leave, nb::arg("reason"))
      .def(
          "fail",
          [](PythonRuntime& self, const std::string& message) {
            self.get().fail(std::make_shared<const Error>(ErrorKind::kPeerLost, message));
          },
          nb::arg("message"), nb::call_guard<nb::gil_scoped_release>(),
          "Fails all operations here and on the other ranks: what they wait for cannot come.")
      .def(
          "add_process_set",
          [](PythonRuntime& self, std::vector<Rank> ranks, std::optional<engine::ProcessSetId> agreed) {
            return self.get().add_process_set(std::move(ranks), agreed);
          },
          nb::arg("ranks"), nb::arg("agreed") = nb::none(), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "remove_process_set", [](PythonRuntime& self, engine::ProcessSetId id) { self.get().remove_process_set(id); },
          nb::arg("process_set"), nb::call_guard<nb::gil_scoped_release>())
      .def("add_service_thread", &PythonRuntime::add_service_thread, nb::arg("native_id"),
           "A thread of Python serves this runtime: it submits nothing, so that another one may be alone.")
      .def("remove_service_thread", &PythonRuntime::remove_service_thread, nb::arg("native_id"), "It ends.")
      .def_prop_ro(
          "lanes_wanted_fd", [](PythonRuntime& self) { return self.job().lanes_wanted_fd(); },
          "Readable when `take_wanted_lanes` has something to give.")
      .def(
          "take_wanted_lanes", [](PythonRuntime& self) { return self.job().take_wanted_lanes(); },
          "(rank, lane) for each lane over TCP that is needed for the first time now: connect it and `attach_lane` it.")
      .def("attach_lane", &attach_lane, nb::arg("rank"), nb::arg("lane"), nb::arg("fds"), nb::arg("secrets"),
           "Takes the descriptors; false when the link is closed already.")
      .def(
          "needs_lane", [](PythonRuntime& self, Rank rank, int lane) { return self.get().needs_lane(rank, lane); },
          nb::arg("rank"), nb::arg("lane"), nb::call_guard<nb::gil_scoped_release>(),
          "Whether something waits for the lane: what wanted it may have ended when the members changed.")
      .def(
          "give_up_link",
          [](PythonRuntime& self, Rank rank, const std::string& why) { self.job().give_up_link(rank, why); },
          nb::arg("rank"), nb::arg("why"), nb::call_guard<nb::gil_scoped_release>(),
          "What was wanted of the link cannot be connected: the rank is lost, unless it has left.");
}

}  // namespace ringcore::python
