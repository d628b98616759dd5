#include "plan/forms/text.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.hpp"
#include "plan/excerpt.hpp"
#include "plan/forms/json.hpp"
#include "plan/forms/whole.hpp"

namespace ringcore::plan {
namespace {

constexpr std::array<std::string_view, 13> kPlanKeys = {
    "ringcore_plan",  "generator",    "collective",  "ranks",     "serving",          "root",    "chunks",
    "scratch_chunks", "inputs_ready", "compression", "one_sided", "accumulates_once", "programs"};
constexpr std::array<std::string_view, 7> kStepKeys = {"kind",  "peer",      "sources", "targets",
                                                       "final", "quantised", "after"};
constexpr std::array<std::string_view, 3> kChunkKeys = {"buffer", "chunk", "rank"};
constexpr std::int64_t kMostIndex = std::numeric_limits<int>::max();

// The index of a word among those that are accepted.
template <class Names>
std::size_t word(JsonReader& reader, std::string_view what, const Names& names) {
  const std::string found = reader.string(what, kMostNameCharacters);
  const auto at = std::find(names.begin(), names.end(), found);
  if (at != names.end()) return static_cast<std::size_t>(at - names.begin());
  std::string accepted;
  for (const std::string_view name : names) accepted.append(accepted.empty() ? "" : ", ").append(name);
  reader.fail(std::string(what) + " is '" + found + "', which is none; there are: " + accepted);
}

class TextReader {
 public:
  explicit TextReader(std::string_view text) : reader_(text) {}

  WholePlan read() {
    std::array<bool, kPlanKeys.size()> seen{};
    reader_.object("the plan", kPlanKeys, [&](std::string_view key) {
      seen[static_cast<std::size_t>(std::find(kPlanKeys.begin(), kPlanKeys.end(), key) - kPlanKeys.begin())] = true;
      read_member(key);
    });
    reader_.end();
    for (const std::string_view needed : {"ringcore_plan", "generator", "collective", "ranks", "chunks", "programs"}) {
      const auto at = std::find(kPlanKeys.begin(), kPlanKeys.end(), needed) - kPlanKeys.begin();
      if (!seen[static_cast<std::size_t>(at)]) reader_.fail("the plan has no '" + std::string(needed) + "'; add it");
    }
    plan_.nodes = plan_.ranks + serving_;
    if (const auto flaw = flaw_of_header(plan_)) reader_.fail(*flaw);
    if (plan_.programs.size() != static_cast<std::size_t>(plan_.nodes)) {
      reader_.fail("the plan has " + std::to_string(plan_.programs.size()) +
                   " programs; it needs one for each of its " + std::to_string(plan_.nodes) + " nodes");
    }
    name_own_memory();
    return std::move(plan_);
  }

 private:
  static constexpr Rank kOwn = -1;

  void read_member(std::string_view key) {
    if (key == "ringcore_plan") {
      const std::int64_t version = reader_.integer("the version 'ringcore_plan'", 1, kMostIndex);
      if (version != kFormVersion) {
        reader_.fail("the plan is of version " + std::to_string(version) + ", but this ringcore reads version " +
                     std::to_string(kFormVersion) + "; install one that is as new as the plan");
      }
    } else if (key == "generator") {
      plan_.generator = reader_.string("'generator'", kMostNameCharacters);
    } else if (key == "collective") {
      std::array<std::string_view, kCollectiveCount> names;
      for (std::size_t i = 0; i < names.size(); ++i) names[i] = name_of(static_cast<Collective>(i));
      plan_.collective = static_cast<Collective>(word(reader_, "'collective'", names));
    } else if (key == "ranks") {
      plan_.ranks = static_cast<int>(reader_.integer("'ranks'", 2, kMostNodes));
    } else if (key == "serving") {
      serving_ = static_cast<int>(reader_.integer("'serving'", 0, kMostNodes));
    } else if (key == "root") {
      plan_.root = static_cast<Rank>(reader_.integer("'root'", 0, kMostNodes));
    } else if (key == "chunks") {
      plan_.chunks = static_cast<std::uint32_t>(reader_.integer("'chunks'", 1, kMostChunks));
    } else if (key == "scratch_chunks") {
      plan_.scratch_chunks = static_cast<std::uint32_t>(reader_.integer("'scratch_chunks'", 0, kMostChunks));
    } else if (key == "inputs_ready") {
      plan_.inputs_ready = reader_.boolean("'inputs_ready'");
    } else if (key == "compression") {
      std::array<std::string_view, kCompressionCount> names;
      for (std::size_t i = 0; i < names.size(); ++i) names[i] = name_of(static_cast<Compression>(i));
      plan_.compression = static_cast<Compression>(word(reader_, "'compression'", names));
    } else if (key == "one_sided") {
      plan_.one_sided = reader_.boolean("'one_sided'");
    } else if (key == "accumulates_once") {
      plan_.accumulates_once = reader_.boolean("'accumulates_once'");
    } else {
      read_programs();
    }
  }

  void read_programs() {
    reader_.array("'programs'", [&] {
      if (plan_.programs.size() == static_cast<std::size_t>(kMostNodes)) {
        reader_.fail("the plan has more than " + std::to_string(kMostNodes) + " programs, which is the most");
      }
      Program& program = plan_.programs.emplace_back();
      reader_.array("a rank's program", [&] {
        if (program.channels.size() == kMostChannels) {
          reader_.fail("a rank has more than " + std::to_string(kMostChannels) + " channels, which is the most");
        }
        Channel& channel = program.channels.emplace_back();
        reader_.array("a channel", [&] { channel.push_back(read_step()); });
      });
    });
  }

  Step read_step() {
    if (++steps_ > kMostSteps) {
      reader_.fail("the plan has more than " + std::to_string(kMostSteps) +
                   " steps, which is the most; use fewer chunks");
    }
    Step step;
    std::optional<StepKind> kind;
    reader_.object("a step", kStepKeys, [&](std::string_view key) {
      if (key == "kind") {
        kind = static_cast<StepKind>(word(reader_, "a step's 'kind'", kStepNames));
      } else if (key == "peer") {
        step.peer = static_cast<Rank>(reader_.integer("a step's 'peer'", 0, kMostNodes));
      } else if (key == "final") {
        step.final = reader_.boolean("a step's 'final'");
      } else if (key == "quantised") {
        step.quantised = reader_.boolean("a step's 'quantised'");
      } else if (key == "after") {
        read_point(step);
      } else {
        read_chunks(key == "sources" ? step.sources : step.targets);
      }
    });
    if (!kind) reader_.fail("a step has no 'kind'; add it");
    step.kind = *kind;
    return step;
  }

  void read_point(Step& step) {
    std::size_t numbers = 0;
    reader_.array("'after'", [&] {
      const int number = static_cast<int>(reader_.integer("'after'", 0, kMostIndex));
      (numbers++ == 0 ? step.after_channel : step.after_step) = number;
    });
    if (numbers != 2) reader_.fail("'after' is [channel, step] of the same rank, both counted from 0");
  }

  void read_chunks(std::vector<ChunkRef>& chunks) {
    reader_.array("a list of chunks", [&] {
      if (chunks.size() == kMostOperands) {
        reader_.fail("a step has more than " + std::to_string(kMostOperands) + " chunks, which is the most");
      }
      ChunkRef ref{.rank = kOwn};
      if (!reader_.at_object()) {
        ref.chunk = static_cast<std::uint32_t>(reader_.integer("a chunk", 0, kMostChunks));
      } else {
        reader_.object("a chunk", kChunkKeys, [&](std::string_view key) {
          if (key == "buffer") {
            ref.buffer = static_cast<Buffer>(word(reader_, "a chunk's 'buffer'", kBufferNames));
          } else if (key == "chunk") {
            ref.chunk = static_cast<std::uint32_t>(reader_.integer("a 'chunk'", 0, kMostChunks));
          } else {
            ref.rank = static_cast<Rank>(reader_.integer("a chunk's 'rank'", 0, kMostNodes));
          }
        });
      }
      chunks.push_back(ref);
    });
  }

  // Whose program it is was not known while a chunk was read: members may come in any order.
  void name_own_memory() {
    for (std::size_t rank = 0; rank < plan_.programs.size(); ++rank) {
      for (Channel& channel : plan_.programs[rank].channels) {
        for (Step& step : channel) {
          for (std::vector<ChunkRef>* refs : {&step.sources, &step.targets}) {
            for (ChunkRef& ref : *refs) ref.rank = ref.rank == kOwn ? static_cast<Rank>(rank) : ref.rank;
          }
        }
      }
    }
  }

  JsonReader reader_;
  WholePlan plan_;
  int serving_ = 0;
  std::size_t steps_ = 0;
};

std::string text_of(const std::vector<ChunkRef>& refs, Rank self) {
  std::string text;
  for (const ChunkRef& ref : refs) {
    text += text.empty() ? "" : ", ";
    const std::string chunk = std::to_string(ref.chunk);
    if (ref.buffer == Buffer::kData && ref.rank == self) {
      text += chunk;
      continue;
    }
    text.append("{\"buffer\": \"").append(kBufferNames[static_cast<std::size_t>(ref.buffer)]).append("\", \"chunk\": ");
    text += chunk + (ref.rank == self ? "" : ", \"rank\": " + std::to_string(ref.rank)) + "}";
  }
  return "[" + text + "]";
}

std::string text_of(const Step& step, Rank self) {
  std::string text = R"({"kind": ")" + std::string(kStepNames[static_cast<std::size_t>(step.kind)]) + "\"";
  if (step.peer >= 0) text += ", \"peer\": " + std::to_string(step.peer);
  if (!step.sources.empty()) text += ", \"sources\": " + text_of(step.sources, self);
  if (!step.targets.empty()) text += ", \"targets\": " + text_of(step.targets, self);
  if (step.final) text += ", \"final\": true";
  if (step.quantised) text += ", \"quantised\": true";
  if (step.after_channel >= 0) {
    text += ", \"after\": [" + std::to_string(step.after_channel) + ", " + std::to_string(step.after_step) + "]";
  }
  return text + "}";
}

std::string text_of(const Program& program, Rank self) {
  std::string text;
  for (const Channel& channel : program.channels) {
    text += text.empty() ? "\n   [" : ",\n   [";
    for (std::size_t i = 0; i < channel.size(); ++i)
      text += (i == 0 ? "\n    " : ",\n    ") + text_of(channel[i], self);
    text += ']';
  }
  return "\n  [" + text + "]";
}

}  // namespace

std::string to_text(const WholePlan& plan) {
  std::string text = "{\"ringcore_plan\": " + std::to_string(kFormVersion) + ",\n \"generator\": \"" + plan.generator +
                     "\",\n \"collective\": \"" + std::string(name_of(plan.collective)) +
                     "\",\n \"ranks\": " + std::to_string(plan.ranks);
  const auto number = [&](std::string_view key, auto value) {
    if (value != 0) text.append(",\n \"").append(key).append("\": ").append(std::to_string(value));
  };
  const auto flag = [&](std::string_view key, bool value) {
    if (value) text.append(",\n \"").append(key).append("\": true");
  };
  number("serving", plan.nodes - plan.ranks);
  number("root", plan.root);
  number("chunks", plan.chunks);
  number("scratch_chunks", plan.scratch_chunks);
  flag("inputs_ready", plan.inputs_ready);
  if (plan.compression != Compression::kNone) {
    text.append(",\n \"compression\": \"").append(name_of(plan.compression)).append("\"");
  }
  flag("one_sided", plan.one_sided);
  flag("accumulates_once", plan.accumulates_once);
  text += ",\n \"programs\": [";
  for (std::size_t rank = 0; rank < plan.programs.size(); ++rank) {
    text += (rank == 0 ? "" : ",") + text_of(plan.programs[rank], static_cast<Rank>(rank));
  }
  return text + "]}\n";
}

WholePlan from_text(std::string_view text) {
  if (text.size() > kMostTextBytes) {
    throw Error(ErrorKind::kInvalidArgument, "the plan's text has " + std::to_string(text.size()) + " bytes; " +
                                                 std::to_string(kMostTextBytes) +
                                                 " are read at most: use fewer chunks");
  }
  return TextReader(text).read();
}

}  // namespace ringcore::plan
