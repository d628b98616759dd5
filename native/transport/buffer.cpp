#include "transport/buffer.hpp"

#include <cstring>
#include <utility>
#include <vector>

namespace ringcore::transport {
namespace {

// Memory that no buffer has at the moment; so few that a thread that ends has kept little.
constexpr std::size_t kMostSpare = 4;
std::vector<std::unique_ptr<std::byte[]>>& spare_memory() {
  thread_local std::vector<std::unique_ptr<std::byte[]>> spare;
  return spare;
}

}  // namespace

std::span<std::byte> Buffer::room() {
  auto& spare = spare_memory();
  if (memory_ == nullptr && spare.empty()) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  } else if (memory_ == nullptr) {
    memory_ = std::move(spare.back());
    spare.pop_back();
  }
  if (begin_ > 0 && (begin_ == end_ || end_ > kBytes / 2)) {
    std::memmove(memory_.get(), memory_.get() + begin_, size());
    end_ -= begin_;
    begin_ = 0;
  }
  return {memory_.get() + end_, kBytes - end_};
}

void Buffer::add(std::size_t bytes) {
  end_ += bytes;
  give_memory_back();
}

void Buffer::drop(std::size_t bytes) {
  begin_ += bytes;
  give_memory_back();
}

void Buffer::give_memory_back() {
  if (memory_ == nullptr || !empty()) return;
  begin_ = end_ = 0;
  auto& spare = spare_memory();
  if (spare.size() < kMostSpare) spare.push_back(std::move(memory_));
  memory_ = nullptr;
}

}  // namespace ringcore::transport
