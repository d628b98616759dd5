// Jobs that are not there: how long their collectives and their agreement take.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "network.hpp"
#include "register.hpp"
#include "simulation/agreement.hpp"
#include "simulation/collective.hpp"

namespace nb = nanobind;

namespace ringcore::python {

void register_simulation(nb::module_& module) {
  using simulation::AgreementTime;
  using simulation::CollectiveTime;
  using simulation::Network;
  nb::class_<CollectiveTime>(module, "CollectiveTime",
                             "What a collective takes by one algorithm; see simulation/collective.hpp.")
      .def_ro("algorithm", &CollectiveTime::algorithm)
      .def_ro("parts", &CollectiveTime::parts)
      .def_ro("seconds", &CollectiveTime::seconds)
      .def_ro("steps", &CollectiveTime::steps)
      .def_ro("program_bytes", &CollectiveTime::program_bytes)
      .def_ro("sent_bytes", &CollectiveTime::sent_bytes)
      .def_ro("peers", &CollectiveTime::peers);
  nb::class_<AgreementTime>(module, "AgreementTime", "What agreeing takes; see simulation/agreement.hpp.")
      .def_ro("first_s", &AgreementTime::first_s)
      .def_ro("again_s", &AgreementTime::again_s)
      .def_ro("step_s", &AgreementTime::step_s)
      .def_ro("step_bytes", &AgreementTime::step_bytes)
      .def_ro("step_records", &AgreementTime::step_records)
      .def_ro("neighbours", &AgreementTime::neighbours);
  nb::class_<Network>(module, "SimulatedNetwork", "A job that is not there; see simulation/network.hpp.")
      .def(
          "__init__",
          [](Network* self, int ranks, int hosts, double bytes_per_s, double latency_s, double message_s,
             double jitter_s, std::map<int, double> slow_hosts, std::uint64_t seed) {
            plan::Links links;
            links.between_hosts = {.latency_s = latency_s, .seconds_per_byte = 1 / bytes_per_s, .message_s = message_s};
            new (self) Network(Network::of(ranks, hosts, links));
            self->disturbance = {.jitter_s = jitter_s, .seed = seed, .slow_hosts = std::move(slow_hosts)};
          },
          nb::arg("ranks"), nb::arg("hosts"), nb::arg("bytes_per_s"), nb::arg("latency_s"), nb::arg("message_s"),
          nb::arg("jitter_s"), nb::arg("slow_hosts"), nb::arg("seed"))
      .def_static(
          "between",
          [](std::vector<int> host_of, int serving, const NetworkTuple& network, double message_s) {
            Network made;
            made.topology = topology_of(std::move(host_of), serving, network, message_s);
            return made;
          },
          nb::arg("host_of"), nb::arg("serving"), nb::arg("network"), nb::arg("message_s"),
          "Of nodes on these hosts, the last of which serve; see network.hpp.")
      .def(
          "collective",
          [](const Network& self, int collective, std::size_t nbytes, const std::vector<std::string>& algorithms) {
            const plan::Query query{.collective = static_cast<Collective>(collective),
                                    .bytes = nbytes,
                                    .dtype = DType::kFloat32,
                                    .even_blocks = true};
            return simulate_collective(self, query, algorithms);
          },
          nb::arg("collective"), nb::arg("nbytes"), nb::arg("algorithms"),
          "The time of each algorithm, the quickest first.", nb::call_guard<nb::gil_scoped_release>())
      .def("agreement", &simulation::simulate_agreement, nb::arg("operations"),
           "The time that ranks take to agree along their tree; of a step with so many operations.",
           nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace ringcore::python
