// Every target of the fuzzers over its corpus, in which what once crashed is kept.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/target.hpp"
#include "link_fixtures.hpp"

// In a process of its own: a crash has a name then, and what MPI has given up is given up there alone.
static void run(const ringcore::fuzz::Target& target, const std::string& seed) {
  ringcore::test::Child child([&] {
    target.run(std::as_bytes(std::span(seed)));
    return true;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("what fuzzers have found stays mended") {
  for (const ringcore::fuzz::Target& target : ringcore::fuzz::targets()) {
    const std::filesystem::path folder = std::filesystem::path(RINGCORE_FUZZ_CORPUS) / target.name;
    REQUIRE_MESSAGE(std::filesystem::is_directory(folder), folder.string() << " is missing");
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      CAPTURE(entry.path().string());
      std::ifstream file(entry.path(), std::ios::binary);
      run(target, {std::istreambuf_iterator<char>(file), {}});
    }
    CAPTURE(target.name);
    run(target, {});
  }
}
