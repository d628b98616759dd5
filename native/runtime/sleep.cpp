#include "runtime/sleep.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <linux/futex.h>
#include <sys/syscall.h>

namespace ringcore {
namespace {

namespace fs = std::filesystem;

struct Sleeper {
  pid_t thread;
  std::string switches;  // how often it has gone to sleep so far
  bool operator==(const Sleeper&) const = default;
};

std::string line_of(const fs::path& file, std::string_view begin) {
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with(begin)) return line;
  }
  return {};
}

// All threads but these; none where one of them is awake.
std::optional<std::vector<Sleeper>> sleepers_but(std::span<const pid_t> threads) {
  std::vector<Sleeper> sleepers;
  std::error_code error;
  for (fs::directory_iterator entry("/proc/self/task", error), end; !error && entry != end; entry.increment(error)) {
    const auto thread = static_cast<pid_t>(std::stol(entry->path().filename()));
    if (std::ranges::find(threads, thread) != threads.end()) continue;
    if (!waits_for_own_process(line_of(entry->path() / "syscall", ""))) return std::nullopt;
    sleepers.push_back({thread, line_of(entry->path() / "status", "voluntary_ctxt_switches")});
    if (sleepers.back().switches.empty()) return std::nullopt;
  }
  if (error) return std::nullopt;
  return sleepers;
}

}  // namespace

bool waits_for_own_process(const std::string& call) {
  std::istringstream words(call);
  long number = -1;
  std::uint64_t address = 0;
  std::uint64_t operation = 0;
  std::uint64_t value = 0;
  std::uint64_t limit = 0;
  words >> number >> std::hex >> address >> operation >> value >> limit;
  if (!words || number != SYS_futex || limit != 0 || (operation & FUTEX_PRIVATE_FLAG) == 0) return false;
  const std::uint64_t command = operation & FUTEX_CMD_MASK;
  return command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET;
}

// Looked at twice: who sleeps both times, and has not gone to sleep between them, has slept all the while.
bool all_sleep_but(std::span<const pid_t> threads) {
  const auto first = sleepers_but(threads);
  return first && first == sleepers_but(threads);
}

}  // namespace ringcore
