// The launcher's vote on who goes on in an elastic job.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "engine/view_change.hpp"
#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {
namespace {

nb::bytes to_python(const engine::ViewMessage& message) {
  const std::vector<std::byte> bytes = engine::encode(message);
  return nb::bytes(bytes.data(), bytes.size());
}

std::optional<nb::bytes> receive(engine::Witness& self, const nb::bytes& message) {
  const std::span bytes(static_cast<const std::byte*>(message.data()), message.size());
  const auto answer = self.receive(engine::decode_view_message(bytes));
  return answer ? std::optional(to_python(*answer)) : std::nullopt;
}

}  // namespace

void register_witness(nb::module_& module) {
  using engine::Witness;
  nb::class_<Witness>(module, "Witness",
                      "Has half a vote on who goes on when ranks are lost; see engine/view_change.hpp.")
      .def(
          "__init__",
          [](Witness* self, std::uint32_t epoch, int size) {
            engine::View first{.epoch = epoch, .members = {}};
            for (engine::Place place = 0; place < size; ++place) first.members.push_back(place);
            new (self) Witness(std::move(first));
          },
          nb::arg("epoch"), nb::arg("size"))
      .def("receive", &receive, nb::arg("message"),
           "What a rank asks, or tells; returns the answer to it, if there is one.")
      .def("prove_ended", &Witness::prove_ended, nb::arg("rank"), "The process of this rank is no more.")
      .def_prop_ro("ended", &Witness::ended, "The ranks of the first epoch that are proven to have ended.")
      .def_prop_ro(
          "proofs", [](const Witness& self) { return to_python(self.proofs()); }, "What tells a rank who has ended.")
      .def_prop_ro("asked", &Witness::asked, "Whether ranks agree on their next epoch, and have needed its vote.")
      .def_prop_ro(
          "view", [](const Witness& self) { return std::pair(self.view().epoch, self.view().members); },
          "The epoch that it knows, and its members, by rank, as ranks of the first epoch.");
}

}  // namespace ringcore::python
