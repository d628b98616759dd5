// Plans from outside, given to the engine of this rank, and what it has found of them.
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.hpp"
#include "plan/forms/whole.hpp"
#include "runtime.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

// (plan, least bytes, most bytes, always)
using OfferTuple = std::tuple<plan::WholePlan, std::size_t, std::size_t, bool>;
// (generator, collective, bytes, predicted s, measured s, of the best beside it s, chosen)
using OutcomeTuple = std::tuple<std::string, std::string, std::size_t, double, double, double, bool>;

void offer_plans(PythonRuntime& self, Rank rank, const std::vector<int>& host_of,
                 const std::vector<OfferTuple>& offers) {
  std::vector<plan::OfferedPlan> offered;
  plan::Topology topology;
  topology.host_of = host_of;
  for (const auto& [whole, least, most, always] : offers) {
    // The last one to look: nothing that is wrong may run, whoever calls this.
    const bool messages_only = !whole.one_sided && !whole.inputs_ready && whole.nodes == whole.ranks;
    if (!messages_only || plan::verify(whole, topology)) {
      throw Error(ErrorKind::kInvalidArgument, "the plan '" + whole.generator + "' is wrong and will not run");
    }
    offered.push_back({.plan = plan::part_of(whole, rank),
                       .excerpt = plan::excerpt_of(whole),
                       .least_bytes = least,
                       .most_bytes = most,
                       .always = always});
  }
  self.job().offered().offer(std::move(offered));
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
          "offer_plans", &offer_plans, nb::arg("rank"), nb::arg("host_of"), nb::arg("offers"),
          nb::call_guard<nb::gil_scoped_release>(),
          "Takes (plan, least bytes, most bytes, always) into account from now on; on all ranks at once, while nothing "
          "is under way.")
      .def("plan_outcomes", &plan_outcomes, nb::call_guard<nb::gil_scoped_release>(),
           "(generator, collective, bytes, predicted s, measured s, of the best beside it s, whether it was chosen)");
}

}  // namespace ringcore::python
