// The daemon of `ringcore-switch`.
#include "aggregation.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "aggregation/daemon.hpp"
#include "base/error.hpp"
#include "register.hpp"
#include "runtime.hpp"

namespace nb = nanobind;

namespace ringcore::python {

aggregation::Key switch_key(const nb::bytes& bytes) {
  aggregation::Key key;
  if (bytes.size() != aggregation::Key::kBytes) {
    throw Error(ErrorKind::kInvalidArgument, "a switch's key has 16 bytes, not " + std::to_string(bytes.size()));
  }
  std::memcpy(key.bytes.data(), bytes.data(), bytes.size());
  return key;
}

void register_aggregation(nb::module_& module) {
  using aggregation::Daemon;
  nb::class_<Daemon>(module, "Switch", "A switch that adds what workers send it over UDP.")
      .def(
          "__init__",
          [](Daemon* self, const std::string& host, std::uint16_t port, const nb::bytes& key,
             const std::optional<std::pair<std::string, std::uint16_t>>& parent, std::uint32_t members,
             std::size_t sessions, double silence_s) {
            aggregation::DaemonConfig config{.host = host, .port = port, .parent = parent, .settings = {}};
            config.settings.key = switch_key(key);
            config.settings.members = members;
            config.settings.most_sessions = sessions;
            config.settings.silence = limit_of(silence_s);
            new (self) Daemon(config);
          },
          nb::arg("host"), nb::arg("port"), nb::arg("key"), nb::kw_only(), nb::arg("parent") = nb::none(),
          nb::arg("members") = 0, nb::arg("sessions") = 64, nb::arg("silence_s") = 5.0,
          "Listens at this address. Under a parent, (host, port), it is a worker of that one. Members: of a session; "
          "0: as many as the job has ranks.")
      .def_prop_ro("address", &Daemon::address, "Where it listens: host:port.")
      .def(
          "run",
          [](Daemon& self) {
            {
              const nb::gil_scoped_release released;
              self.run(python_interrupted);
            }
            if (PyErr_Occurred() != nullptr) throw nb::python_error();
          },
          "Serves until a signal's handler raises.")
      .def(
          "counts",
          [](const Daemon& self) {
            const Daemon::State state = self.state();
            return std::tuple(state.counts.packets, state.counts.foreign, state.counts.forged, state.counts.refused,
                              state.sessions, state.held_bytes);
          },
          nb::call_guard<nb::gil_scoped_release>(),
          "Packets of ours, not ours, of another key, and without a session; sessions, and bytes that they hold.");
}

}  // namespace ringcore::python
