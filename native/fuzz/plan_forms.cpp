// Plans from outside: what is read is written and read again the same, and the verifier says of each whether it is right.
#include <string_view>

#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "plan/forms/binary.hpp"
#include "plan/forms/text.hpp"
#include "plan/forms/whole.hpp"

namespace ringcore::fuzz {
namespace {

// What is small enough that a round takes no longer than a moment.
constexpr std::size_t kMostVerifiedCells = 1 << 12;

bool alike(const plan::WholePlan& a, const plan::WholePlan& b) {
  if (static_cast<const plan::Header&>(a) != b || a.programs.size() != b.programs.size()) return false;
  for (std::size_t i = 0; i < a.programs.size(); ++i) {
    if (a.programs[i].channels != b.programs[i].channels) return false;
  }
  return true;
}

}  // namespace

void plan_forms(Bytes input) {
  plan::WholePlan read;
  try {
    read = plan::is_binary(input) ? plan::from_binary(input)
                                  : plan::from_text({reinterpret_cast<const char*>(input.data()), input.size()});
  } catch (const Error& error) {
    require(std::string_view(error.what()).size() > 10, "a refusal says why");
    return;
  }
  require(alike(read, plan::from_text(plan::to_text(read))), "the text form keeps a plan as it is");
  require(alike(read, plan::from_binary(plan::to_binary(read))), "the binary form keeps a plan as it is");
  if (static_cast<std::size_t>(read.nodes) * (read.chunks + read.scratch_chunks) > kMostVerifiedCells) return;
  plan::Topology topology;
  topology.host_of.assign(static_cast<std::size_t>(read.nodes), 0);
  topology.serving = read.nodes - read.ranks;
  static_cast<void>(plan::verify(read, topology));
}

}  // namespace ringcore::fuzz
