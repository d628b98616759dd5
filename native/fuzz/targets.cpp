#include <array>
#include <cstdio>

#include "fuzz/target.hpp"

namespace ringcore::fuzz {

void records(Bytes input);
void signatures(Bytes input);
void tree(Bytes input);
void view_messages(Bytes input);
void view_change(Bytes input);
void engine(Bytes input);
void altered_records(Bytes input);
void standstills(Bytes input);
void transfers(Bytes input);
void stripes(Bytes input);
void segment(Bytes input);
void rings(Bytes input);
void mpi(Bytes input);
void plans(Bytes input);
void plan_forms(Bytes input);
void aggregation(Bytes input);
void secure_stream(Bytes input);

std::span<const Target> targets() {
  static constexpr std::array kTargets = {
      Target{"records", records},
      Target{"signatures", signatures},
      Target{"tree", tree},
      Target{"view_messages", view_messages},
      Target{"view_change", view_change},
      Target{"engine", engine},
      Target{"altered_records", altered_records},
      Target{"standstills", standstills},
      Target{"transfers", transfers},
      Target{"stripes", stripes},
      Target{"segment", segment},
      Target{"rings", rings},
      Target{"mpi", mpi},
      Target{"plans", plans},
      Target{"plan_forms", plan_forms},
      Target{"aggregation", aggregation},
      Target{"secure_stream", secure_stream},
  };
  return kTargets;
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "this does not hold: %s\n", what);
  std::abort();
}

}  // namespace ringcore::fuzz
