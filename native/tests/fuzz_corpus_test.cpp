// Every target of the fuzzers over its corpus, in which what once crashed is kept.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/target.hpp"

TEST_CASE("what fuzzers have found stays mended") {
  for (const ringcore::fuzz::Target& target : ringcore::fuzz::targets()) {
    const std::filesystem::path folder = std::filesystem::path(RINGCORE_FUZZ_CORPUS) / target.name;
    REQUIRE_MESSAGE(std::filesystem::is_directory(folder), folder.string() << " is missing");
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      CAPTURE(entry.path().string());
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string seed(std::istreambuf_iterator<char>(file), {});
      target.run(std::as_bytes(std::span(seed)));
    }
    target.run({});
  }
}
