// The MPI of this process.
#include "transport/mpi/world.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "register.hpp"

namespace nb = nanobind;

namespace ringcore::python {

void register_mpi(nb::module_& module) {
  using transport::MpiWorld;
  const auto nanoseconds = [](double seconds) {
    return static_cast<Nanoseconds>(seconds * static_cast<double>(kSecond));
  };
  nb::class_<MpiWorld>(module, "MpiWorld", "The ranks of an MPI communicator, and the MPI that connects them.")
      .def_static(
          "open",
          [nanoseconds](const std::string& library, const std::string& shims, std::optional<int> fortran_comm,
                        double limit_s) {
            const nb::gil_scoped_release released;
            return MpiWorld::open(library, shims, fortran_comm, nanoseconds(limit_s));
          },
          nb::arg("library"), nb::arg("shims"), nb::arg("fortran_comm").none(), nb::arg("limit_s"),
          "Opens an MPI library with the shim for it from the folder `shims`, initialises MPI if nobody has, and "
          "duplicates the communicator (None: MPI_COMM_WORLD). Every rank of it calls this.")
      .def_prop_ro("rank", &MpiWorld::rank)
      .def_prop_ro("size", &MpiWorld::size)
      .def_prop_ro(
          "version", [](const MpiWorld& self) { return self.library().version(); }, "What the library calls itself.")
      .def(
          "exchange",
          [nanoseconds](MpiWorld& self, const nb::bytes& own, double limit_s) {
            const std::string bytes(own.c_str(), own.size());
            std::vector<std::string> parts;
            {
              const nb::gil_scoped_release released;
              parts = self.exchange(bytes, nanoseconds(limit_s));
            }
            nb::typed<nb::list, nb::bytes> all;
            for (const std::string& part : parts) all.append(nb::bytes(part.data(), part.size()));
            return all;
          },
          nb::arg("own"), nb::arg("limit_s"), "What every rank gave, by rank. Every rank calls this.");
}

}  // namespace ringcore::python
