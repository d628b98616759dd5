// Plans from outside, given to the engine of this rank, and what it has found of them.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "plan/offered.hpp"
#include "runtime.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

// (plan, least bytes, most bytes, always)
using OfferTuple = std::tuple<plan::WholePlan, std::size_t, std::size_t, bool>;
// (generator, collective, bytes, predicted s, measured s, of the best beside it s, chosen)
using OutcomeTuple = std::tuple<std::string, std::string, std::size_t, double, double, double, bool>;

void offer_plans(PythonRuntime& self, Rank rank, std::vector<int> host_of, int servers,
                 const std::vector<OfferTuple>& offers) {
  std::vector<plan::OfferedPlan> offered;
  plan::Topology topology;
  topology.host_of = std::move(host_of);
  topology.serving = servers;
  std::vector<std::vector<std::byte>> to_servers;
  for (const auto& [whole, least, most, always] : offers) {
    const plan::Offer offer{.plan = whole, .least_bytes = least, .most_bytes = most, .always = always};
    // The last one to look: nothing that is wrong may run, whoever calls this.
    offered.push_back(plan::offered_to(rank, offer, topology));
    if (rank == 0 && servers > 0) to_servers.push_back(plan::to_bytes(offer));
  }
  self.job().offered().offer(std::move(offered));
  for (const std::vector<std::byte>& offer : to_servers) self.get().offer(offer);
}

std::vector<OutcomeTuple> plan_outcomes(PythonRuntime& self) {
  std::vector<OutcomeTuple> outcomes;
  for (const plan::OfferedOutcome& each : self.job().offered().outcomes()) {
    outcomes.emplace_back(each.generator, std::string(name_of(each.collective)), each.bytes, each.predicted_s,
                          each.measured_s, each.best_other_s, each.chosen);
  }
  return outcomes;
}

}  // namespace

void register_offers(nb::class_<PythonRuntime>& runtime) {
  runtime
      .def(
          "offer_plans", &offer_plans, nb::arg("rank"), nb::arg("host_of"), nb::arg("servers"), nb::arg("offers"),
          nb::call_guard<nb::gil_scoped_release>(),
          "Takes (plan, least bytes, most bytes, always) into account from now on; on all ranks at once, while nothing "
          "is under way. `host_of`: of each rank, and the servers behind them, which rank 0 tells.")
      .def("plan_outcomes", &plan_outcomes, nb::call_guard<nb::gil_scoped_release>(),
           "(generator, collective, bytes, predicted s, measured s, of the best beside it s, whether it was chosen)");
}

}  // namespace ringcore::python
