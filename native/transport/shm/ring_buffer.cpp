#include "transport/shm/ring_buffer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "base/error.hpp"
#include "transport/copy.hpp"

namespace ringcore::transport {
namespace {

// Published in pieces, so that the other side copies out while this side still copies in. The pieces are large, because
// a reader close behind the writer fetches lines, ahead of what it reads, that are just being written: with 8 KiB
// instead of 256 KiB an allreduce of 1 MiB takes 100 us instead of 75.
constexpr std::size_t kWrittenPieceBytes = std::size_t{256} << 10;
// Room is given back in smaller ones: the writer should not wait for it.
constexpr std::size_t kReadPieceBytes = std::size_t{64} << 10;

// Sequentially consistent throughout: a side that publishes an index and then asks whether the other sleeps must not
// have the two swapped. On x86 only the stores pay for it.
using Index = std::atomic_ref<std::uint64_t>;
static_assert(Index::is_always_lock_free);

}  // namespace

RingMapping::RingMapping(int fd, std::size_t offset, std::size_t bytes) : bytes_(bytes) {
  void* both = ::mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool mapped = both != MAP_FAILED;
  if (mapped) data_ = static_cast<std::byte*>(both);
  for (int copy = 0; mapped && copy < 2; ++copy) {
    mapped = ::mmap(data_ + static_cast<std::size_t>(copy) * bytes, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset)) != MAP_FAILED;
  }
  if (!mapped) {
    const int error_number = errno;
    if (data_ != nullptr) ::munmap(data_, 2 * bytes);
    throw Error(ErrorKind::kResource,
                with_errno("cannot map a ring of " + std::to_string(bytes) + " bytes", error_number));
  }
}

RingMapping::RingMapping(RingMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

RingMapping& RingMapping::operator=(RingMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RingMapping::~RingMapping() {
  if (data_ != nullptr) ::munmap(data_, 2 * bytes_);
}

RingProducer::RingProducer(RingIndices& shared, std::byte* data, std::size_t capacity)
    : shared_(&shared), data_(data), capacity_(capacity) {}

std::size_t RingProducer::write(std::span<const std::byte> bytes) {
  // At most one ringful a call: a consumer that keeps up must not hold the caller here.
  const std::size_t wanted = std::min(bytes.size(), capacity_);
  std::size_t taken = 0;
  while (taken < wanted) {
    const std::size_t rest = wanted - taken;
    const std::size_t free = known_room() >= rest ? rest : room();
    const std::size_t piece = std::min({free, rest, kWrittenPieceBytes});
    if (piece == 0) break;
    std::byte* to = data_ + (tail_ & (capacity_ - 1));
    copy_to_peer(to, bytes.data() + taken, piece);
    tail_ += piece;
    taken += piece;
    Index(shared_->tail).store(tail_);
  }
  short_ = taken < wanted;
  return taken;
}

bool RingProducer::blocked() { return short_ && room() == 0; }

// Looks at the consumer's line, which the consumer writes all the time: only when the known room is not enough.
std::size_t RingProducer::room() {
  if (corrupt_) return 0;
  const std::uint64_t head = Index(shared_->head).load();
  if (tail_ - head > capacity_) {
    corrupt_ = true;
    return 0;
  }
  head_ = head;
  return known_room();
}

RingConsumer::RingConsumer(RingIndices& shared, const std::byte* data, std::size_t capacity)
    : shared_(&shared), data_(data), capacity_(capacity) {}

std::span<const std::byte> RingConsumer::peek() { return {data_ + (head_ & (capacity_ - 1)), available()}; }

void RingConsumer::consume(std::size_t bytes) {
  head_ += bytes;
  Index(shared_->head).store(head_);
}

std::size_t RingConsumer::read(std::span<std::byte> out) {
  std::size_t taken = 0;
  while (taken < out.size()) {
    const std::size_t piece = std::min({available(), out.size() - taken, kReadPieceBytes});
    if (piece == 0) break;
    std::memcpy(out.data() + taken, data_ + (head_ & (capacity_ - 1)), piece);
    consume(piece);
    taken += piece;
  }
  return taken;
}

bool RingConsumer::arrived() {
  const std::uint64_t seen = tail_;
  available();
  return tail_ != seen;
}

std::size_t RingConsumer::available() {
  if (!corrupt_) {
    const std::uint64_t tail = Index(shared_->tail).load();
    if (tail - head_ > capacity_) {
      corrupt_ = true;
    } else {
      tail_ = tail;
    }
  }
  return static_cast<std::size_t>(tail_ - head_);
}

}  // namespace ringcore::transport
