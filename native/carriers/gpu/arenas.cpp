#include "carriers/gpu/arenas.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "device/libraries.hpp"
#include "device/reduce.hpp"

namespace ringcore::carriers {
namespace {

namespace cuda = device::cuda;

// Each word has a cache line of its own.
constexpr std::size_t kWordSpacing = 128;
// For the largest group, so that every arena fits for the next process set.
constexpr std::size_t kWordsBytes = kWordSpacing * (1 + 2 * device::kMaxSources);
// Words count as reached when they are less than half of all values further.
constexpr std::uint32_t kFarAhead = 1U << 30;

void fill_words(cuda::Pointer words, std::uint32_t value, cuda::Stream stream) {
  device::check_cuda(
      device::driver().cuMemsetD2D32Async(words, kWordsBytes, value, kWordsBytes / sizeof(value), 1, stream),
      "cuMemsetD2D32Async");
}

}  // namespace

SharedArenas::SharedArenas(std::shared_ptr<const device::Stream> stream, int place, std::size_t bytes)
    : stream_(std::move(stream)),
      device_(stream_->device()),
      place_(place),
      bytes_(bytes),
      aborting_(device_, device::Stream::Priority::kLowest) {
  const device::Device::Current current(device_);
  try {
    device::check_ipc();
    own_ = device::take_exported(device_, bytes_ + kWordsBytes);
    notice_.arena = own_->handle;
    fill_words(address_of(place_, 0), 0, stream_->get());
    // Whether this GPU can do that.
    write(place_, kResult, 0);
    wait(kResult, 0);
    made_ = std::make_unique<const device::Event>(device_, stream_->get());
  } catch (const Error& error) {
    refuse(error.what());
  }
}

SharedArenas::~SharedArenas() {
  const device::Device::Current current(device_, std::nothrow);
  if (!current) return;
  try {
    device::retire(std::make_shared<const device::Event>(device_, stream_->get()), own_, std::move(opened_));
  } catch (const Error&) {
    opened_.clear();  // the GPU has failed: nothing uses them any more
  }
}

void SharedArenas::refuse(const std::string& why) {
  const std::size_t bytes = std::min(why.size(), sizeof(notice_.problem) - 1);
  std::memcpy(notice_.problem, why.data(), bytes);
  notice_.problem[bytes] = '\0';
}

void SharedArenas::open(std::span<const Notice> group) {
  const device::Device::Current current(device_);
  const auto places = static_cast<int>(group.size());
  opened_.resize(places);
  try {
    for (int place = 0; place < places; ++place) {
      if (place == place_ || (place != 0 && place_ != 0)) continue;
      opened_[place] = std::make_unique<device::OpenedMemory>(device_, group[place].arena);
    }
  } catch (const Error& error) {
    refuse(error.what());
  }
}

cuda::Pointer SharedArenas::data(int place) const {
  return place == place_ ? own_->pointer : opened_[place]->pointer();
}

cuda::Pointer SharedArenas::address_of(int place, int word) const { return data(place) + bytes_ + word * kWordSpacing; }

void SharedArenas::wait(int word, std::uint32_t value) const {
  device::wait_for_word(stream_->get(), address_of(place_, word), value);
}

void SharedArenas::write(int place, int word, std::uint32_t value) const {
  device::write_word(stream_->get(), address_of(place, word), value);
}

// What other ranks have given to their streams may still write smaller values over this. Their last one is therefore as
// large, wherever they stand: behind all that this rank has launched, it says so to them.
void SharedArenas::abort(std::uint32_t value) {
  if (!own_) return;
  try {
    const device::Device::Current current(device_);
    fill_words(address_of(place_, 0), value + kFarAhead, aborting_.get());
    for (int place = 0; place < static_cast<int>(opened_.size()); ++place) {
      if (opened_[place] == nullptr) continue;
      if (place_ == 0) {
        write(place, kResult, value + kFarAhead);
      } else {
        write(place, packed(place_), value + kFarAhead);
        write(place, taken(place_), value + kFarAhead);
      }
    }
  } catch (const Error& error) {
    refuse(error.what());  // the GPU has failed: nothing waits there
  }
  own_.reset();  // others may still write there: nobody uses it again
}

}  // namespace ringcore::carriers
