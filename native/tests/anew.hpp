// This program once more, from its begin.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

namespace ringcore::testing {

// In place of the process that calls this, with an argument; returns where that fails. RINGCORE_TEST_EMULATOR is what runs
// this program where the processor cannot, with its options.
inline void begin_anew(const std::string& argument) {
  const char* emulator = std::getenv("RINGCORE_TEST_EMULATOR");
  std::istringstream options(emulator == nullptr ? "" : emulator);
  std::vector<std::string> words(std::istream_iterator<std::string>(options), {});
  words.push_back(std::filesystem::read_symlink("/proc/self/exe"));
  words.push_back(argument);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
}

}  // namespace ringcore::testing
