// Plans as text and as bytes: nothing is lost, and what is wrong is said with its place and what to do.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "outside_plan.hpp"
#include "plan/forms/binary.hpp"
#include "plan/forms/text.hpp"
#include "plan/forms/whole.hpp"
#include "plan/generator.hpp"
#include "plan/offered.hpp"

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

TEST_CASE("plan forms: an offer comes to servers as it was, and is theirs where it fits the job") {
  const auto topology = [](int ranks, int serving) {
    return Topology{.host_of = std::vector<int>(static_cast<std::size_t>(ranks + serving)), .serving = serving};
  };
  const Offer offer{testing::outside_plan(3, 2), 7, 70, true};
  const Offer come = offer_from(to_bytes(offer));
  CHECK(alike(come.plan, offer.plan));
  CHECK((come.least_bytes == 7 && come.most_bytes == 70 && come.always));
  CHECK(!offer_from(to_bytes({.plan = offer.plan})).always);
  // A node has its own program, and a server that the plan has no use for none.
  for (Rank node = 0; node < 6; ++node) {
    const OfferedPlan offered = offered_to(node, come, topology(3, 3));
    const Channel none;
    const Channel& own = offered.plan.program.channels.empty() ? none : offered.plan.program.channels.front();
    CHECK(own == (node < 5 ? offer.plan.programs[static_cast<std::size_t>(node)].channels.front() : none));
    CHECK(offered.plan.scratch_chunks == 3);
    CHECK(offered.fits({.collective = Collective::kAllreduce, .bytes = 70}, 3, true));
  }
  const auto why = [&](const Offer& given, const Topology& on) { return refusal([&] { offered_to(0, given, on); }); };
  CHECK(why(offer, topology(3, 1)).find("it is for 3 ranks and 2 servers, and there are 3 ranks and 1 server") !=
        std::string::npos);
  CHECK(why(offer, topology(4, 2)).find("and there are 4 ranks and 2 servers") != std::string::npos);
  CHECK(why(offer, topology(5, 0)).find("and there are 5 ranks and 0 servers") != std::string::npos);
  // A rank is no server, whoever asks.
  CHECK(verify(offer.plan, topology(5, 0)).has_value());
  CHECK(verify(offer.plan, topology(4, 1)).has_value());
  Offer wrong = offer;
  wrong.plan.programs[4].channels.front().pop_back();
  CHECK(why(wrong, topology(3, 2)).find("the plan 'outside' from outside is wrong and will not run: ") == 0);
  // A server has no data of its own to give, even where nobody makes use of it.
  wrong = offer;
  const auto first = [&wrong](std::size_t node, const Step& step) {
    Channel& channel = wrong.plan.programs[node].channels.front();
    channel.insert(channel.begin(), step);
  };
  const ChunkRef unused{.rank = 0, .buffer = Buffer::kScratch, .chunk = 0};
  first(3, {.kind = StepKind::kSend, .peer = 0, .sources = {{.rank = 3, .chunk = 0}}});
  first(0, {.kind = StepKind::kRecv, .peer = 3, .sources = {{.rank = 0, .chunk = 0}}, .targets = {unused}});
  CHECK(why(wrong, topology(3, 2)).find("the plan 'outside' from outside is wrong and will not run: ") == 0);
  wrong = offer;
  wrong.plan.one_sided = true;
  CHECK(why(wrong, topology(3, 2)).find("it reads other ranks' memory") != std::string::npos);
  const std::vector<std::byte> bytes = to_bytes(offer);
  CHECK(refusal([&] { offer_from(std::span(bytes).first(20)); }).find("was cut off: it has come in 20 bytes") !=
        std::string::npos);
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
