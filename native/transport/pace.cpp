#include "transport/pace.hpp"

#include <algorithm>

namespace ringcore::transport {
namespace {
constexpr std::uint64_t kMicrosecondsASecond = 1'000'000;
}  // namespace

void PaceSamples::take(const SendCounters& counters) {
  latest_ = counters;
  if (counters.sending_us - begins_.back().sending_us >= kMicrosecondsASecond) {
    begins_ = {begins_.back(), counters};
  }
  if (counters.bytes_per_s > 0) rates_[taken_++ % kKept] = counters.bytes_per_s;
}

Pace PaceSamples::pace() const {
  Pace pace;
  const std::size_t count = std::min(taken_, kKept);
  if (count == 0) return pace;
  auto rates = rates_;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(rates.begin(), middle, rates.begin() + static_cast<std::ptrdiff_t>(count));
  pace.bytes_per_s = *middle;
  const SendCounters& begin = begins_.front();
  const double seconds =
      static_cast<double>(latest_.sending_us - begin.sending_us) / static_cast<double>(kMicrosecondsASecond);
  pace.sure = count >= kSure;
  if (seconds >= 1) pace.mean_bytes_per_s = static_cast<double>(latest_.bytes - begin.bytes) / seconds;
  return pace;
}

Pace side_by_side(std::span<const Pace> connections) {
  Pace all{.sure = true};
  int known = 0;
  int with_mean = 0;
  for (const Pace& one : connections) {
    all.bytes_per_s += one.bytes_per_s;
    all.mean_bytes_per_s += one.mean_bytes_per_s;
    known += one.bytes_per_s > 0 ? 1 : 0;
    with_mean += one.mean_bytes_per_s > 0 ? 1 : 0;
    all.sure = all.sure && one.sure;
    if (all.latency_s == 0 || (one.latency_s > 0 && one.latency_s < all.latency_s)) all.latency_s = one.latency_s;
  }
  if (known > 0) all.bytes_per_s *= static_cast<double>(connections.size()) / known;
  if (with_mean > 0) all.mean_bytes_per_s *= static_cast<double>(connections.size()) / with_mean;
  all.sure = all.sure && known > 0;
  return all;
}

}  // namespace ringcore::transport
