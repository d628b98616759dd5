// A ring in shared memory, of which a mad peer writes both indices at any time.
#include "transport/shm/ring_buffer.hpp"

#include <algorithm>
#include <array>

#include <sys/mman.h>
#include <unistd.h>

#include "base/owned.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

constexpr std::size_t kCapacity = 4096;

struct Ring {
  Fd fd{::memfd_create("fuzz", MFD_CLOEXEC)};
  transport::RingMapping mapping;
  transport::RingIndices indices{};

  Ring() {
    require(fd && ::ftruncate(fd.get(), kCapacity) == 0, "there are memory files");
    mapping = transport::RingMapping(fd.get(), 0, kCapacity);
  }
};

// Near where it is, or anywhere.
void change(std::uint64_t& index, Input& bytes) {
  if (bytes.below(4) == 0) {
    index = bytes.take<std::uint64_t>();
  } else {
    index += static_cast<std::uint64_t>(std::int64_t{bytes.take<std::int16_t>()});
  }
}

}  // namespace

void rings(Bytes input) {
  Input bytes(input);
  static Ring ring;
  ring.indices = {};
  transport::RingProducer producer(ring.indices, ring.mapping.data(), kCapacity);
  transport::RingConsumer consumer(ring.indices, ring.mapping.data(), kCapacity);
  std::array<std::byte, 2 * kCapacity> memory{};
  const std::span<std::byte> room(memory);
  while (!bytes.empty()) {
    const std::size_t size = bytes.take<std::uint16_t>() % (memory.size() + 1);
    switch (bytes.below(6)) {
      case 0: change(ring.indices.head, bytes); break;
      case 1: change(ring.indices.tail, bytes); break;
      case 2: require(producer.write(room.first(size)) <= kCapacity, "a ring takes no more than it holds"); break;
      case 3: require(consumer.read(room.first(size)) <= size, "no more is read than was asked for"); break;
      case 4: {
        const Bytes seen = consumer.peek();
        require(seen.size() <= kCapacity, "a ring shows no more than it holds");
        std::copy(seen.begin(), seen.end(), memory.begin());
        consumer.consume(std::min(seen.size(), size));
        break;
      }
      default:
        producer.blocked();
        consumer.arrived();
        break;
    }
  }
}

}  // namespace ringcore::fuzz
