#include "workload.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

namespace ringcore::simulation {
namespace {

constexpr DType kDTypes[] = {DType::kUInt8,   DType::kInt8,    DType::kUInt16,  DType::kInt16,
                             DType::kInt32,   DType::kInt64,   DType::kFloat16, DType::kBFloat16,
                             DType::kFloat32, DType::kFloat64, DType::kBool};
constexpr std::uint64_t kRowElements = 2;

// The compiler's own, so that ours is not checked by itself. g++ 12 knows it by another name there.
#if defined(__aarch64__)
using Half = __fp16;
#else
using Half = _Float16;
#endif

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL ^ (b + 0x7f4a7c15) * 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 29;
  return x * 0x94d049bb133111ebULL >> 20;
}

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

void encode(DType dtype, std::byte* at, double value) {
  switch (dtype) {
    case DType::kUInt8: return store(at, static_cast<std::uint8_t>(value));
    case DType::kInt8: return store(at, static_cast<std::int8_t>(value));
    case DType::kUInt16: return store(at, static_cast<std::uint16_t>(value));
    case DType::kInt16: return store(at, static_cast<std::int16_t>(value));
    case DType::kInt32: return store(at, static_cast<std::int32_t>(value));
    case DType::kInt64: return store(at, static_cast<std::int64_t>(value));
    case DType::kFloat16: return store(at, static_cast<Half>(value));
    case DType::kBFloat16:
      return store(at, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
    case DType::kFloat32: return store(at, static_cast<float>(value));
    case DType::kFloat64: return store(at, value);
    case DType::kBool: return store(at, static_cast<std::uint8_t>(value != 0));
  }
}

double decode(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kBool: return load<std::uint8_t>(at);
    case DType::kInt8: return load<std::int8_t>(at);
    case DType::kUInt16: return load<std::uint16_t>(at);
    case DType::kInt16: return load<std::int16_t>(at);
    case DType::kInt32: return load<std::int32_t>(at);
    case DType::kInt64: return static_cast<double>(load<std::int64_t>(at));
    case DType::kFloat16: return static_cast<double>(load<Half>(at));
    case DType::kBFloat16: return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(at)) << 16);
    case DType::kFloat32: return load<float>(at);
    case DType::kFloat64: return load<double>(at);
  }
  __builtin_unreachable();
}

// Small enough for six ranks' sum, and their product, with factors, in the smallest dtype.
double value_of(const Request& request, std::size_t tensor, int member, std::uint64_t element) {
  const std::uint64_t hash = mixed(mixed(request.salt + tensor, static_cast<std::uint64_t>(member)), element);
  if (request.dtype == DType::kBool) return static_cast<double>(hash % 2);
  if (request.reduces() && request.op == ReduceOp::kProduct) {
    return element % 6 == static_cast<std::uint64_t>(member) ? static_cast<double>(1 + hash % 3) : 1;
  }
  // Of some elements no number, which says whose it is: operands in another order would leave another one.
  constexpr std::uint64_t kQuietNan = std::uint64_t{0x7ff8} << 48;
  if (!request.exact && hash % 64 == 0) {
    return std::bit_cast<double>(kQuietNan | (static_cast<std::uint64_t>(member) + 1) << 45);
  }
  if (!request.exact) return 0.5 + static_cast<double>(hash % 1000) / 1000;
  return static_cast<double>(1 + hash % 5);
}

double combine(const Request& request, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (request.dtype == DType::kBool) {
    return request.op == ReduceOp::kSum || request.op == ReduceOp::kMax ? std::max(a, b) : std::min(a, b);
  }
  switch (request.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return a + b;
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kProduct: return a * b;
  }
  __builtin_unreachable();
}

// An element of the reduced tensor.
double reduced(const Request& request, std::size_t tensor, std::uint64_t element, const std::vector<int>& contributors,
               int members) {
  double result = 0;
  for (std::size_t i = 0; i < contributors.size(); ++i) {
    const double own = value_of(request, tensor, contributors[i], element) * request.prescale;
    result = i == 0 ? own : combine(request, result, own);
  }
  return result * request.postscale / (request.op == ReduceOp::kAverage ? members : 1);
}

// The elements of the result, in float64.
std::vector<double> expected(const Request& request, std::size_t tensor, int member, int members,
                             const std::vector<int>& contributors) {
  std::vector<double> all;
  const std::uint64_t rows = request.rows[tensor];
  const auto add = [&](int from, std::uint64_t begin, std::uint64_t count) {
    for (std::uint64_t e = begin * kRowElements; e < (begin + count) * kRowElements; ++e) {
      all.push_back(value_of(request, tensor, from, e));
    }
  };
  switch (request.collective) {
    case Collective::kAllreduce:
      for (std::uint64_t e = 0; e < rows * kRowElements; ++e) {
        all.push_back(reduced(request, tensor, e, contributors, members));
      }
      break;
    case Collective::kReduce:
      for (std::uint64_t e = 0; member == request.root && e < rows * kRowElements; ++e) {
        all.push_back(reduced(request, tensor, e, contributors, members));
      }
      break;
    case Collective::kBroadcast: add(request.root, 0, rows); break;
    case Collective::kAllgather:
      for (int from = 0; from < members; ++from) add(from, 0, rows_of(request, tensor, from, members));
      break;
    case Collective::kGather:
      for (int from = 0; member == request.root && from < members; ++from) {
        add(from, 0, rows_of(request, tensor, from, members));
      }
      break;
    case Collective::kScatter: {
      std::uint64_t begin = 0;
      for (int to = 0; to < member; ++to) begin += split_of(request, tensor, request.root, to);
      add(request.root, begin, split_of(request, tensor, request.root, member));
      break;
    }
    case Collective::kReduceScatter: {
      const auto n = static_cast<std::uint64_t>(members);
      const auto m = static_cast<std::uint64_t>(member);
      const std::uint64_t begin = rows / n * m + std::min(m, rows % n);
      const std::uint64_t count = rows / n + (m < rows % n ? 1 : 0);
      for (std::uint64_t e = begin * kRowElements; e < (begin + count) * kRowElements; ++e) {
        all.push_back(reduced(request, tensor, e, contributors, members));
      }
      break;
    }
    case Collective::kAlltoall:
      for (int from = 0; from < members; ++from) {
        std::uint64_t begin = 0;
        for (int to = 0; to < member; ++to) begin += split_of(request, tensor, from, to);
        add(from, begin, split_of(request, tensor, from, member));
      }
      break;
    case Collective::kBarrier: break;
  }
  return all;
}

// How far a result of quantised transfers may be off: half a scale at each hop, where values are at most 5, factors
// before the sum 2, and buckets of tensors with other factors.
double quantised_tolerance(const Request& request, int members) {
  if (request.compression == Compression::kNone) return 0;
  const double largest = 10 * std::abs(request.postscale) / (request.op == ReduceOp::kAverage ? members : 1);
  return members * members * largest * 0.51 / (request.compression == Compression::kInt8 ? 127 : 7);
}

// How far a result may be from the exact one, relative to it.
double tolerance(const Request& request, int members) {
  const bool divides = request.op == ReduceOp::kAverage && !std::has_single_bit(static_cast<unsigned>(members));
  if (!request.reduces() || !is_float(request.dtype) || (request.exact && !divides)) return 0;
  switch (request.dtype) {
    case DType::kFloat16: return 0x1p-8;
    case DType::kBFloat16: return 0x1p-5;
    case DType::kFloat32: return 1e-5;
    default: return 1e-12;
  }
}

void draw_factors(Draw& draw, Request& request) {
  if (!request.reduces() || request.dtype == DType::kBool || request.op == ReduceOp::kProduct) return;
  constexpr double kWhole[] = {1, 1, 2};
  constexpr double kFactors[] = {1, 1, 0.5, 2, -1};
  const bool whole = !is_float(request.dtype);
  request.prescale = whole ? draw.of(kWhole) : draw.of(kFactors);
  request.postscale = whole ? draw.of(kWhole) : draw.of(kFactors);
}

void draw_misfit(Draw& draw, Request& request, int members) {
  std::vector<Misfit> possible{Misfit::kDType};
  if (request.dtype != DType::kBool) possible.insert(possible.end(), {Misfit::kPrescale, Misfit::kPostscale});
  const bool compressed = request.compression != Compression::kNone;
  if (request.reduces() && request.op != ReduceOp::kAverage && !compressed) possible.push_back(Misfit::kOp);
  if (compressed) possible.push_back(Misfit::kCompression);
  if (has_root(request.collective)) possible.push_back(Misfit::kRoot);
  if (request.reduces() || request.collective == Collective::kBroadcast) possible.push_back(Misfit::kRows);
  if (request.has_own_result() && !request.reduces()) possible.insert(possible.end(), 2, Misfit::kOutput);
  if (request.reduces() && !is_float(request.dtype)) possible.push_back(Misfit::kRefused);
  request.misfit = possible[static_cast<std::size_t>(draw.below(static_cast<int>(possible.size())))];
  request.misfit_member = draw.below(members);
  request.misfit_of_all = request.misfit == Misfit::kRefused && draw.one_in(3);
  if (request.misfit == Misfit::kOutput) request.outputs |= 1U << request.misfit_member;
}

Request draw_request(Draw& draw, const Workload& workload, std::size_t set, bool joins) {
  const int members = static_cast<int>(workload.sets[set].size());
  Request request;
  request.set = set;
  const bool any = !joins || draw.one_in(6);
  request.collective = any ? static_cast<Collective>(draw.below(kCollectiveCount)) : Collective::kAllreduce;
  request.dtype = draw.of(kDTypes);
  request.op = static_cast<ReduceOp>(draw.below(is_float(request.dtype) ? kReduceOpCount : kReduceOpCount - 1));
  if (!is_float(request.dtype) && request.op == ReduceOp::kAverage) request.op = ReduceOp::kProduct;
  draw_factors(draw, request);
  request.root = draw.below(members);
  request.priority = draw.one_in(2) ? 0 : draw.below(7) - 4;
  request.salt = draw.generator()();
  request.outputs = draw.one_in(2) ? 0 : static_cast<unsigned>(draw.below(1 << 8));
  request.place = static_cast<Place>(draw.below(workload.registered_memory ? 4 : 2));
  request.on_device = workload.devices && request.collective != Collective::kBarrier && draw.one_in(2);
  request.exact = !is_float(request.dtype) || draw.one_in(2);
  const bool sums = request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage;
  const bool wide = request.dtype == DType::kFloat32 || request.dtype == DType::kFloat64;
  if (request.collective == Collective::kAllreduce && sums && wide && draw.one_in(2)) {
    request.compression = draw.of({Compression::kInt8, Compression::kInt4});
    request.exact = true;  // what is no number takes its neighbours with it
  }
  const auto rows = [&] { return static_cast<std::uint64_t>(draw.one_in(5) ? draw.below(1500) : draw.below(40)); };
  const bool groups = request.collective != Collective::kAlltoall && request.collective != Collective::kBarrier &&
                      (!has_root(request.collective) || request.collective == Collective::kBroadcast);
  request.group = groups && draw.one_in(4);
  const int tensors = request.group ? 1 + draw.below(5) : 1;
  for (int i = 0; i < tensors; ++i) request.rows.push_back(request.collective == Collective::kBarrier ? 0 : rows());
  const bool spoilt = members > 1 && !joins && draw.one_in(10);
  if (spoilt && draw.one_in(2)) {
    request.missing_member = draw.below(members);
  } else if (spoilt && request.collective != Collective::kBarrier) {
    draw_misfit(draw, request, members);
  }
  if (request.has_own_result() && request.outputs != 0)
    request.on_device = false;  // on devices the engine makes the results
  return request;
}

// Another tensor like it, as a model has many; in another process set by the same name.
Request draw_like(Draw& draw, const Workload& workload, std::size_t set, const Request& other) {
  Request request = other;
  request.root = draw.below(static_cast<int>(workload.sets[set].size()));
  request.priority = draw.one_in(2) ? 0 : draw.below(7) - 4;
  request.salt = draw.generator()();
  if (set == other.set) request.name.clear();
  request.set = set;
  return request;
}

void draw_sets(Draw& draw, Workload& workload, std::vector<std::size_t>& present, Phase& phase) {
  while (draw.one_in(3) && workload.sets.size() < 6) {
    std::vector<Rank> members;
    for (Rank rank = 0; rank < workload.ranks; ++rank) {
      if (!draw.one_in(3)) members.push_back(rank);
    }
    if (members.empty()) continue;
    present.push_back(workload.sets.size());
    phase.added.push_back(workload.sets.size());
    workload.sets.push_back(std::move(members));
  }
}

// Who leaves out what the others wait for goes on without them: what it submits next would meet what they submit before
// that. The job ends here, unless that was all, and its process set is removed: then they are told so at once.
bool leaves_ranks_apart(const Phase& phase) {
  const auto missing = [](const Request& request) { return request.missing_member >= 0; };
  const auto first = std::find_if(phase.requests.begin(), phase.requests.end(), missing);
  if (first == phase.requests.end()) return false;
  const bool removed = std::find(phase.removed.begin(), phase.removed.end(), first->set) != phase.removed.end();
  return phase.blocking || !removed || std::count_if(first, phase.requests.end(), missing) > 1;
}

void draw_phase(Draw& draw, Workload& workload, std::vector<std::size_t>& present, std::vector<std::size_t>& removed) {
  Phase& phase = workload.phases.emplace_back();
  for (const std::size_t set : removed) std::erase(present, set);
  removed.clear();
  draw_sets(draw, workload, present, phase);
  phase.blocking = draw.one_in(3);
  phase.joins = draw.one_in(4);
  const int count = 1 + draw.below(6);
  for (int i = 0; i < count; ++i) {
    const std::size_t set = phase.joins || draw.one_in(2)
                                ? 0
                                : present[static_cast<std::size_t>(draw.below(static_cast<int>(present.size())))];
    const bool like = i > 0 && phase.requests.back().fits() && draw.one_in(4);
    Request request =
        like ? draw_like(draw, workload, set, phase.requests.back()) : draw_request(draw, workload, set, phase.joins);
    const auto is_taken = [&](const Request& other) { return other.set == set && other.name == request.name; };
    if (request.name.empty() || std::any_of(phase.requests.begin(), phase.requests.end(), is_taken)) {
      request.name = "t" + std::to_string(i);
    }
    phase.requests.push_back(std::move(request));
  }
  for (const std::size_t set : present) {
    if (set != 0 && draw.one_in(3)) removed.push_back(set);
  }
  phase.removed = removed;
}

// A server may be a member of any set but the world.
void add_servers(Draw& draw, Workload& workload) {
  constexpr std::size_t kMostMembers = 6;  // see value_of
  for (std::size_t set = 1; set < workload.sets.size(); ++set) {
    if (draw.one_in(3) || workload.sets[set].size() >= kMostMembers) continue;
    workload.sets[set].push_back(workload.ranks + draw.below(workload.servers));
    workload.with_server.push_back(set);
  }
}

Workload draw_ranks_and_phases(Draw& draw) {
  Workload workload;
  workload.ranks = 2 + draw.below(draw.one_in(3) ? 5 : 3);
  if (draw.one_in(5)) workload.servers = 1 + draw.below(draw.one_in(3) ? workload.ranks + 2 : 2);
  const int nodes = nodes_of(workload);
  const int kinds[] = {1, 2, 2, nodes};
  const int hosts = draw.of(kinds);
  for (Rank node = 0; node < nodes; ++node) {
    workload.host_of.push_back(hosts == nodes ? node : draw.one_in(2) ? 0 : node % hosts);
  }
  workload.encrypted = draw.one_in(2);
  workload.registered_memory = draw.one_in(2);
  workload.deterministic = draw.one_in(4);
  workload.devices = workload.servers == 0 && draw.one_in(3);
  workload.able_devices = !draw.one_in(4);
  workload.library = workload.servers == 0 && draw.one_in(4);
  workload.fusion_bytes = draw.of<std::size_t>({0, 1024, 4096, 4096});
  workload.partition_bytes = draw.of<std::size_t>({0, 100, 1024, 3000});
  workload.credit_bytes = draw.of<std::size_t>({0, 1, 1500, 1 << 20});
  workload.eager_bytes = draw.of<std::size_t>({0, 256, 2048});
  workload.direct_members = draw.of<int>({1, 2, 16, 16});
  // What devices and libraries have ended rings nobody.
  // A lane may show a part of what has come, which an encrypted one cannot tell from a record that is not whole.
  workload.sleeps = draw.one_in(2) && !workload.devices && !workload.library && !workload.encrypted;
  workload.survey_every = draw.of<int>({1, 3, 200});
  workload.sets.emplace_back(static_cast<std::size_t>(workload.ranks));
  std::iota(workload.sets[0].begin(), workload.sets[0].end(), 0);
  std::vector<std::size_t> present{0};
  std::vector<std::size_t> removed;
  if (draw.one_in(10)) {  // a loop of steps: plans are tried, and what has a priority comes after its trials
    draw_phase(draw, workload, present, removed);
    std::erase_if(workload.phases[0].requests, [](const Request& request) { return !request.fits(); });
    Phase step = workload.phases[0];
    workload.phases[0].removed.clear();
    step.added.clear();
    step.removed.clear();
    for (int repeat = 0; repeat < 20; ++repeat) {
      for (Request& request : step.requests) ++request.salt;
      workload.phases.push_back(step);
    }
    return workload;
  }
  const int phases = 1 + draw.below(3);
  for (int i = 0; i < phases && (i == 0 || !leaves_ranks_apart(workload.phases.back())); ++i) {
    draw_phase(draw, workload, present, removed);
  }
  return workload;
}

}  // namespace

Workload draw_workload(Draw& draw) {
  Workload workload = draw_ranks_and_phases(draw);
  // Whatever else a seed decides stays as it is without plans from outside.
  std::mt19937_64 generator = draw.generator();
  Draw offers(generator());
  if (workload.servers > 0) {
    Draw joined(generator());
    add_servers(joined, workload);
  }
  if (workload.servers == 0 || offers.one_in(3)) return workload;
  for (Phase& phase : workload.phases) {
    if (offers.one_in(2)) phase.offer = {offers.below(workload.servers + 1), offers.one_in(2)};
  }
  return workload;
}

std::uint64_t rows_of(const Request& request, std::size_t tensor, int member, int members) {
  const std::uint64_t rows = request.rows[tensor];
  const bool gathers = request.collective == Collective::kAllgather || request.collective == Collective::kGather;
  if (gathers) return rows + static_cast<std::uint64_t>(member);
  const bool deals_out = request.collective == Collective::kScatter && member == request.root;
  if (request.collective != Collective::kAlltoall && !deals_out) return rows;
  std::uint64_t sum = 0;
  for (int to = 0; to < members; ++to) sum += split_of(request, tensor, member, to);
  return sum;
}

std::uint64_t result_rows_of(const Request& request, std::size_t tensor, int member, int members) {
  const auto n = static_cast<std::uint64_t>(members);
  const std::uint64_t rows = request.rows[tensor];
  if (request.collective == Collective::kReduceScatter) {
    return rows / n + (static_cast<std::uint64_t>(member) < rows % n ? 1 : 0);
  }
  if (request.collective == Collective::kScatter) return split_of(request, tensor, request.root, member);
  if (request.collective == Collective::kGather && member != request.root) return 0;
  std::uint64_t sum = 0;
  for (int from = 0; from < members; ++from) {
    const bool exchanges = request.collective == Collective::kAlltoall;
    sum += exchanges ? split_of(request, tensor, from, member) : rows_of(request, tensor, from, members);
  }
  return sum;
}

std::uint64_t split_of(const Request& request, std::size_t tensor, int from, int to) {
  return (request.rows[tensor] + static_cast<std::uint64_t>(from * 3 + to)) % 7;
}

std::vector<std::byte> input_of(const Request& request, std::size_t tensor, int member, int members) {
  const std::uint64_t elements = rows_of(request, tensor, member, members) * kRowElements;
  const std::size_t size = size_of(request.dtype);
  std::vector<std::byte> bytes(elements * size);
  for (std::uint64_t e = 0; e < elements; ++e) {
    encode(request.dtype, bytes.data() + e * size, value_of(request, tensor, member, e));
  }
  return bytes;
}

std::string check_result(const Request& request, std::size_t tensor, int member, int members,
                         const std::vector<int>& contributors, std::span<const std::byte> got) {
  if (request.collective == Collective::kBarrier) return "";
  const std::vector<double> right = expected(request, tensor, member, members, contributors);
  const std::size_t size = size_of(request.dtype);
  if (got.size() != right.size() * size) {
    return std::to_string(got.size()) + " bytes instead of " + std::to_string(right.size() * size);
  }
  const double allowed = tolerance(request, members);
  const double quantised = quantised_tolerance(request, members);
  for (std::size_t e = 0; e < right.size(); ++e) {
    const double value = decode(request.dtype, got.data() + e * size);
    std::array<std::byte, 8> moved{};  // what is only moved is rounded to the dtype before
    if (!request.reduces()) encode(request.dtype, moved.data(), right[e]);
    const double expected_value = request.reduces() ? right[e] : decode(request.dtype, moved.data());
    if (std::isnan(value) && std::isnan(expected_value)) continue;
    if (std::abs(value - expected_value) <= allowed * std::abs(expected_value) + quantised) continue;
    return "element " + std::to_string(e) + " is " + std::to_string(value) + " instead of " +
           std::to_string(expected_value);
  }
  return "";
}

}  // namespace ringcore::simulation
