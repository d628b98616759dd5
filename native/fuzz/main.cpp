// The program that libFuzzer drives: RINGCORE_FUZZ_TARGET says which of the targets it runs.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "fuzz/target.hpp"

namespace {

const ringcore::fuzz::Target& chosen() {
  const char* const name = std::getenv("RINGCORE_FUZZ_TARGET");
  for (const ringcore::fuzz::Target& target : ringcore::fuzz::targets()) {
    if (name != nullptr && target.name == name) return target;
  }
  std::fprintf(stderr, "RINGCORE_FUZZ_TARGET names no target\n");
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ringcore::fuzz::Target& target = chosen();
  target.run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
