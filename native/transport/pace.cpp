#include "transport/pace.hpp"

namespace ringcore::transport {

Pace side_by_side(std::span<const Pace> connections) {
  Pace all{.sure = true};
  int known = 0;
  for (const Pace& one : connections) {
    all.bytes_per_s += one.bytes_per_s;
    known += one.bytes_per_s > 0 ? 1 : 0;
    all.sure = all.sure && one.sure;
    if (all.latency_s == 0 || (one.latency_s > 0 && one.latency_s < all.latency_s)) all.latency_s = one.latency_s;
  }
  if (known > 0) all.bytes_per_s *= static_cast<double>(connections.size()) / known;
  all.sure = all.sure && known > 0;
  return all;
}

}  // namespace ringcore::transport
