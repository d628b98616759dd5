#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "temporary_folder.hpp"
#include "transport/copy.hpp"

using namespace ringcore;

namespace {

// What Linux tells of processors, in a folder of its own.
class Processors {
 public:
  void add(int cpu, int index, int level, const std::string& shared_by) const {
    const auto cache = folder() / ("cpu" + std::to_string(cpu)) / "cache" / ("index" + std::to_string(index));
    std::filesystem::create_directories(cache);
    std::ofstream(cache / "level") << level << '\n';
    std::ofstream(cache / "shared_cpu_list") << shared_by << '\n';
  }
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  testing::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("copy: last-level caches are counted by who shares them") {
  const Processors processors;
  CHECK(transport::count_caches(processors.folder() / "nothing") == 0);
  CHECK(transport::count_caches(processors.folder()) == 0);
  for (const int cpu : {0, 1, 2, 5}) {
    processors.add(cpu, 0, 1, std::to_string(cpu));
    processors.add(cpu, 3, 3, cpu < 2 ? "0-1" : "2,5");
  }
  std::filesystem::create_directories(processors.folder() / "cpufreq");
  CHECK(transport::count_caches(processors.folder()) == 2);
}

TEST_CASE("copy: short copies are streamed only between caches of AMD's, long ones everywhere") {
  constexpr std::size_t kRing = std::size_t{256} << 10;
  CHECK(transport::streaming_bytes(true, 2) <= kRing);
  for (const auto& [amd, caches] : {std::pair{true, 1}, {true, 0}, {false, 1}, {false, 2}}) {
    CHECK(transport::streaming_bytes(amd, caches) > kRing);
    CHECK(transport::streaming_bytes(amd, caches) <= std::size_t{16} << 20);
  }
}

TEST_CASE("copy: whatever the length and the alignment") {
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 128, 1000, 4096, 5003}) {
    for (const std::size_t offset : {0, 1, 16, 63}) {
      std::vector<std::byte> from(bytes + offset);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
      for (const auto copy : {transport::stream, transport::copy_to_peer}) {
        std::vector<std::byte> to(offset + bytes + offset);
        copy(to.data() + offset, from.data() + offset, bytes);
        std::vector<std::byte> expected(to.size());
        std::copy_n(from.data() + offset, bytes, expected.data() + offset);
        CHECK(to == expected);
      }
    }
  }
}
