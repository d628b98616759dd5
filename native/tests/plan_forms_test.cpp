// Plans as text and as bytes: nothing is lost, and what is wrong is said with its place and what to do.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "plan/forms/binary.hpp"
#include "plan/forms/text.hpp"
#include "plan/forms/whole.hpp"
#include "plan/generator.hpp"

namespace {

using namespace ringcore;
using namespace ringcore::plan;

constexpr std::pair<bool, Compression> kWays[] = {
    {false, Compression::kNone}, {true, Compression::kNone}, {false, Compression::kInt8}, {false, Compression::kInt4}};

Topology hosts(int ranks) {
  Topology topology;
  for (int rank = 0; rank < ranks; ++rank) topology.host_of.push_back(rank);
  return topology;
}

WholePlan whole(const Generator& generator, const PlanRequest& request) {
  WholePlan whole;
  for (Rank rank = 0; rank < request.topology->nodes(); ++rank) {
    std::optional<Plan> plan = generator.generate(request, rank);
    if (!plan) return {};
    static_cast<Header&>(whole) = *plan;
    plan->program.segment_ends.clear();
    whole.programs.push_back(std::move(plan->program));
  }
  return whole;
}

bool alike(const WholePlan& a, const WholePlan& b) {
  if (static_cast<const Header&>(a) != b || a.programs.size() != b.programs.size()) return false;
  for (std::size_t i = 0; i < a.programs.size(); ++i) {
    if (a.programs[i].channels != b.programs[i].channels) return false;
  }
  return true;
}

std::string refusal(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "it was read";
}
std::string refusal(std::string_view text) {
  return refusal([&] { from_text(text); });
}

// Rank 1 gives what it has to rank 0, which gives back the sum.
constexpr std::string_view kPair = R"({"ringcore_plan": 1, "generator": "pair", "collective": "allreduce", "ranks": 2,
 "chunks": 1, "programs": [
  [[{"kind": "recv_reduce", "peer": 1, "targets": [0], "final": true}, {"kind": "send", "peer": 1, "sources": [0]}]],
  [[{"kind": "send", "peer": 0, "sources": [0]}, {"kind": "recv", "peer": 0, "targets": [0]}]]]})";

std::string with(std::string_view what, std::string_view instead) {
  std::string text(kPair);
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), instead);
}

}  // namespace

TEST_CASE("plan forms: every generator's plans come back as they were") {
  int plans = 0;
  for (const int ranks : {2, 3, 4, 8}) {
    Topology topology = hosts(ranks);
    for (const Generator* generator : generators()) {
      topology.serving = generator->serves() ? 1 : 0;
      for (int code = 0; code < kCollectiveCount; ++code) {
        const auto collective = static_cast<Collective>(code);
        for (const auto& [visible, compression] : kWays) {
          const PlanRequest request{.collective = collective,
                                    .topology = &topology,
                                    .root = topology.ranks() > 2 ? 1 : 0,
                                    .parts = 2,
                                    .memory_visible = visible,
                                    .compression = compression};
          if (topology.ranks() < 2) continue;
          if (compression != Compression::kNone && collective != Collective::kAllreduce) continue;
          const WholePlan plan = whole(*generator, request);
          if (plan.programs.empty()) continue;
          CAPTURE(generator->name());
          ++plans;
          CHECK(alike(plan, from_text(to_text(plan))));
          CHECK(alike(plan, from_binary(to_binary(plan))));
          CHECK(hash_of(to_binary(plan)) == hash_of(to_binary(from_text(to_text(plan)))));
          if (plan.one_sided) continue;  // on one host only
          const auto flaw = verify(plan, topology);
          CHECK_MESSAGE(!flaw.has_value(), flaw.value_or(""));
        }
      }
    }
  }
  CHECK(plans > 60);
}

TEST_CASE("plan forms: the verifier sees what a text does wrong") {
  const Topology topology = hosts(2);
  CHECK(!verify(from_text(kPair), topology).has_value());
  // Rank 1 keeps what it had.
  const auto flaw = verify(from_text(with(R"(, {"kind": "recv", "peer": 0, "targets": [0]})", "")), topology);
  REQUIRE(flaw.has_value());
  CHECK(flaw->find("pair: ") == 0);
  // A step waits for one that is not there.
  CHECK(verify(from_text(with(R"("final": true)", R"("final": true, "after": [0, 77])")), topology).has_value());
  CHECK(verify(from_text(with(R"("peer": 1)", R"("peer": 7)")), topology).has_value());
  CHECK(verify(from_text(with(R"("final": true)", R"("final": true, "quantised": true)")), topology).has_value());
}

TEST_CASE("plan forms: a text that is none is refused with its place and a remedy") {
  CHECK(refusal("") == "line 1, column 1: the plan is an object, in { }, but the text ends");
  CHECK(refusal(with(R"("peer": 1)", R"("pear": 1)")) ==
        "line 3, column 29: a step has no 'pear'; it may have: kind, peer, sources, targets, final, quantised, after");
  CHECK(refusal(with("\"send\"", "\"sent\"")) ==
        "line 3, column 81: a step's 'kind' is 'sent', which is none; there are: send, recv, recv_reduce, reduce, "
        "signal, wait");
  CHECK(refusal(with("\"ringcore_plan\": 1", "\"ringcore_plan\": 2")) ==
        "line 1, column 19: the plan is of version 2, but this ringcore reads version 1; install one that is as new as "
        "the plan");
  CHECK(refusal(with("\"chunks\": 1,", "")).find("the plan has no 'chunks'; add it") != std::string::npos);
  CHECK(refusal(with("\"chunks\": 1", "\"chunks\": 1e3")).find("a whole number from 1 to 65536, but there is 1e3") !=
        std::string::npos);
  CHECK(refusal(with("\"chunks\": 1", "\"chunks\": 99999999999999999999")).find("but there is 9999") !=
        std::string::npos);
  CHECK(refusal(with("\"ranks\": 2", "\"ranks\": 3"))
            .find("the plan has 2 programs; it needs one for each of its 3 nodes") != std::string::npos);
  CHECK(refusal(with("\"ranks\": 2", "\"ranks\": 2, \"ranks\": 2")).find("'ranks' twice") != std::string::npos);
  CHECK(refusal(with("\"allreduce\"", "\"allgather\"")).find("a multiple of its 2 ranks") != std::string::npos);
  CHECK(refusal(with("\"allreduce\"", "\"barrier\"")).find("a barrier needs no plan") != std::string::npos);
  CHECK(refusal(with("\"chunks\": 1", "\"root\": 2, \"chunks\": 1")).find("the root is rank 2, which is none") !=
        std::string::npos);
  CHECK(refusal(std::string(kPair).append("x")).find("the text goes on behind its end") != std::string::npos);
  CHECK(refusal(with("[0]}, ", "[0]}, ,")).find("a step is an object, in { }, but there is ','") != std::string::npos);
  for (std::size_t length = 0; length < kPair.size(); ++length) {
    CHECK(refusal(kPair.substr(0, length)).find("line ") == 0);
  }
}

TEST_CASE("plan forms: bytes that are no plan are refused wherever they are cut or changed") {
  const std::vector<std::byte> good = to_binary(from_text(kPair));
  CHECK(refusal([&] { from_binary({}); }) == "byte 0: these bytes are no plan of ringcore");
  for (std::size_t length = 4; length < good.size(); ++length) {
    CHECK(refusal([&] { from_binary(std::span(good).first(length)); }).find("it was cut off") != std::string::npos);
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  CHECK(refusal([&] { from_binary(longer); }).find("goes on behind its end") != std::string::npos);
  for (std::size_t at = 4; at < good.size(); ++at) {
    std::vector<std::byte> changed = good;
    changed[at] = std::byte{0xff};
    const std::string said = refusal([&] { from_binary(changed); });
    CHECK((said.find("byte ") == 0 || said == "it was read"));
    CHECK(hash_of(changed) != hash_of(good));
  }
}
