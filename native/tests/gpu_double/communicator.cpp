#include "communicator.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "base/reduce.hpp"
#include "double.hpp"

namespace gpu_double {
namespace {

using ringcore::DType;
using ringcore::ReduceOp;

std::atomic<int> stays_away = -1;  // the rank that comes to no meeting

std::mutex hubs_mutex;  // Guards: hubs().

// Listening sockets of this process, by name.
std::map<std::string, int>& hubs() {
  static auto& open = *new std::map<std::string, int>;
  return open;
}

std::mutex communicators_mutex;  // Guards: communicators().

std::set<Communicator*>& communicators() {
  static auto& made = *new std::set<Communicator*>;
  return made;
}

// Abstract: nothing is left behind in a file system.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

DType dtype_of(int code) {
  switch (code) {
    case 0: return DType::kInt8;
    case 2: return DType::kInt32;
    case 4: return DType::kInt64;
    case 6: return DType::kFloat16;
    case 7: return DType::kFloat32;
    case 8: return DType::kFloat64;
    case 9: return DType::kBFloat16;
    default: return DType::kUInt8;
  }
}

ReduceOp op_of(int code) {
  constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin};
  return kOps.at(code);
}

// What every rank must have called alike.
struct Header {
  Kind kind;
  int dtype;
  int op;
  int root;
  std::size_t count;
  Registered from;
  Registered to;
  std::size_t from_offset;  // in windows, which are symmetric
  std::size_t to_offset;
  bool operator==(const Header&) const = default;
};

std::size_t offset_in(const Registration* window, const std::byte* at) {
  return window == nullptr || window->how != Registered::kAsWindow ? 0 : at - window->begin;
}

Registered how(const Registration* registration) {
  return registration == nullptr ? Registered::kNot : registration->how;
}

Header header_of(const Call& call) {
  const bool rooted = call.kind == Kind::kReduce || call.kind == Kind::kBroadcast;
  return {call.kind,
          call.dtype,
          call.op,
          rooted ? call.peer : 0,
          call.count,
          how(call.from_registered.get()),
          how(call.to_registered.get()),
          offset_in(call.from_registered.get(), call.from),
          offset_in(call.to_registered.get(), call.to)};
}

struct Message {
  int peer;
  std::size_t bytes;
};

// With which a rank comes to the hub.
struct Greeting {
  int rank;
  int device;
  bool meeting;
};

// What a rank gives to a collective, and what it gets.
std::size_t input_bytes(const Call& call, int rank, int size) {
  if (call.kind == Kind::kReduceScatter) return bytes_of(call) * size;
  return call.kind == Kind::kBroadcast && rank != call.peer ? 0 : bytes_of(call);
}

std::size_t output_bytes(const Call& call, int rank, int size) {
  if (call.kind == Kind::kAllGather) return bytes_of(call) * size;
  return call.kind == Kind::kReduce && rank != call.peer ? 0 : bytes_of(call);
}

}  // namespace

void stay_away(int rank) { stays_away = rank; }

std::size_t bytes_of(const Call& call) { return call.count * ringcore::size_of(dtype_of(call.dtype)); }

std::string open_hub() {
  const std::string name = "gpu_double-" + std::to_string(::getpid()) + "-" + std::to_string(std::random_device{}());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto [address, bytes] = address_of(name);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0 || ::listen(fd, 64) != 0) return "";
  const std::lock_guard lock(hubs_mutex);
  hubs().emplace(name, fd);
  return name;
}

void disconnect_all() {
  const std::lock_guard lock(communicators_mutex);
  for (Communicator* communicator : communicators()) communicator->disconnect();
}

Communicator::Communicator(std::string hub, int rank, int size, int device)
    : hub_(std::move(hub)), rank_(rank), size_(size), device_(device), thread_([this] { connect(); }) {
  const std::lock_guard lock(communicators_mutex);
  communicators().insert(this);
}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(communicators_mutex);
    communicators().erase(this);
  }
  if (thread_.joinable()) thread_.join();
  wait_for_meeting();
  for (const auto* fds : {&fds_, &meeting_fds_}) {
    for (const int fd : *fds) {
      if (fd >= 0) ::close(fd);
    }
  }
}

void Communicator::connect() {
  std::vector<int> fds(rank_ == 0 ? size_ : 1, -1);
  std::vector<int> meeting_fds(fds.size(), -1);
  if (rank_ == 0) {
    int listening = -1;
    {
      const std::lock_guard lock(hubs_mutex);
      const auto found = hubs().find(hub_);
      if (found == hubs().end()) return fail(kInvalidUsage);
      listening = found->second;
      hubs().erase(found);
    }
    {
      const std::lock_guard lock(mutex_);
      fds_ = {listening};
    }
    std::vector<int> devices(size_, device_);
    for (int i = 0; i < 2 * (size_ - 1); ++i) {
      const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
      Greeting greeting{};
      if (fd < 0 || !receive(fd, &greeting, sizeof(greeting))) return fail(kRemoteError);
      (greeting.meeting ? meeting_fds : fds)[greeting.rank] = fd;
      devices[greeting.rank] = greeting.device;
    }
    ::close(listening);
    std::ranges::sort(devices);
    const bool shared = std::ranges::adjacent_find(devices) != devices.end();
    if (shared && setting("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 0) {
      {
        const std::lock_guard lock(mutex_);
        fds_ = std::move(fds);
        meeting_fds_ = std::move(meeting_fds);
      }
      return fail(kInvalidUsage);
    }
  } else {
    const auto [address, bytes] = address_of(hub_);
    for (auto* target : {&fds, &meeting_fds}) {
      const int fd = target->front() = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) return fail(kRemoteError);
      const Greeting greeting{rank_, device_, target == &meeting_fds};
      if (!send(fd, &greeting, sizeof(greeting))) return fail(kRemoteError);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    fds_ = std::move(fds);
    meeting_fds_ = std::move(meeting_fds);
  }
  int connecting = kInProgress;
  state_.compare_exchange_strong(connecting, kSuccess);
  if (aborted_) abort();
}

void Communicator::abort() {
  aborted_ = true;
  shut();
}

void Communicator::fail(int result) {
  state_ = result;
  shut();
}

void Communicator::shut() {
  const std::lock_guard lock(mutex_);
  for (const auto* fds : {&fds_, &meeting_fds_}) {
    for (const int fd : *fds) {
      if (fd >= 0) ::shutdown(fd, SHUT_RDWR);
    }
  }
}

void Communicator::meet(std::size_t number, std::function<void()> then) {
  wait_for_meeting();
  meets_ = true;
  meeting_ = std::thread([this, number, then = std::move(then)] {
    if (meet_all(number)) {
      then();
    } else if (!aborted_) {
      fail(kRemoteError);
    }
    meets_ = false;
  });
}

void Communicator::wait_for_meeting() {
  if (meeting_.joinable()) meeting_.join();
}

bool Communicator::meet_all(std::size_t number) {
  while (rank_ == stays_away && !aborted_) ::usleep(1000);  // as a rank whose process was stopped
  if (rank_ != 0) {
    bool same = false;
    if (!send(meeting_fds_[0], &number, sizeof(number)) || !receive(meeting_fds_[0], &same, sizeof(same))) return false;
    return same;
  }
  bool same = true;
  for (int r = 1; r < size_; ++r) {
    std::size_t theirs = 0;
    if (!receive(meeting_fds_[r], &theirs, sizeof(theirs))) return false;
    same = same && theirs == number;
  }
  for (int r = 1; r < size_; ++r) {
    if (!send(meeting_fds_[r], &same, sizeof(same))) return false;
  }
  return same;
}

bool Communicator::send(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= sent;
  }
  return true;
}

bool Communicator::receive(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t received = ::recv(fd, at, bytes, 0);
    if (received <= 0) return false;
    at += received;
    bytes -= received;
  }
  return true;
}

// What the environment asks for.
void Communicator::fault() {
  static std::atomic<long> calls = 0;
  const long call = ++calls;
  if (call == setting("GPU_DOUBLE_FAIL", 0)) fail(kInternalError);
  if (call != setting("GPU_DOUBLE_HANG", 0)) return;
  while (!aborted_ && state_ == kSuccess) ::usleep(1000);  // a kernel that spins
}

void Communicator::run(std::span<const Call> calls) {
  run_all(calls);
  while (state_ != kSuccess && !aborted_) ::usleep(1000);  // kernels that others' data cannot reach spin until then
}

void Communicator::run_all(std::span<const Call> calls) {
  const auto is_between_two = [](const Call& call) { return call.kind == Kind::kSend || call.kind == Kind::kRecv; };
  for (const Call& call : calls) {
    if (is_between_two(call)) continue;
    fault();
    if (state_ != kSuccess || aborted_) return;
    count_use(how(call.from_registered.get()));
    rank_ == 0 ? run_hub(call) : run_one(call);
  }
  std::vector<Call> between_two;
  std::copy_if(calls.begin(), calls.end(), std::back_inserter(between_two), is_between_two);
  if (between_two.empty() && !calls.empty()) return;
  fault();
  if (state_ == kSuccess && !aborted_) exchange(between_two);
}

void Communicator::run_one(const Call& call) {
  const Header header = header_of(call);
  const bool done = send(fds_[0], &header, sizeof(header)) &&
                    send(fds_[0], call.from, input_bytes(call, rank_, size_)) &&
                    receive(fds_[0], call.to, output_bytes(call, rank_, size_));
  if (!done) fail(kRemoteError);
}

void Communicator::run_hub(const Call& call) {
  const Header own = header_of(call);
  std::vector<std::vector<std::byte>> inputs(size_);
  for (int r = 0; r < size_; ++r) {
    const std::size_t bytes = input_bytes(call, r, size_);
    if (r == 0) {
      inputs[r].assign(call.from, call.from + bytes);
      continue;
    }
    Header header{};
    if (!receive(fds_[r], &header, sizeof(header))) return fail(kRemoteError);
    if (header != own) return fail(kInvalidUsage);
    inputs[r].resize(bytes);
    if (!receive(fds_[r], inputs[r].data(), bytes)) return fail(kRemoteError);
  }
  std::vector<std::byte> result;
  if (call.kind == Kind::kBroadcast) {
    result = inputs[call.peer];
  } else if (call.kind == Kind::kAllGather) {
    for (const auto& input : inputs) result.insert(result.end(), input.begin(), input.end());
  } else {
    result.resize(inputs[0].size());
    std::vector<const std::byte*> sources;
    for (const auto& input : inputs) sources.push_back(input.data());
    std::byte* const targets[] = {result.data()};
    const DType dtype = dtype_of(call.dtype);
    ringcore::reduce_many(dtype, op_of(call.op), sources, targets, result.size() / ringcore::size_of(dtype));
  }
  for (int r = size_ - 1; r >= 0; --r) {
    const std::size_t bytes = output_bytes(call, r, size_);
    const std::byte* from = result.data() + (call.kind == Kind::kReduceScatter ? r * bytes : 0);
    if (r == 0) {
      if (bytes > 0) std::memcpy(call.to, from, bytes);
    } else if (!send(fds_[r], from, bytes)) {
      return fail(kRemoteError);
    }
  }
}

// Sends and receives of one group run as one: every rank gives what it sends, and gets what is for it.
void Communicator::exchange(std::span<const Call> calls) {
  struct Parcel {
    int peer;  // to whom; delivered: from whom
    std::vector<std::byte> bytes;
  };
  const auto send_all = [this](int fd, const std::vector<Parcel>& parcels) {
    const std::size_t count = parcels.size();
    bool sent = send(fd, &count, sizeof(count));
    for (const Parcel& parcel : parcels) {
      const Message message{parcel.peer, parcel.bytes.size()};
      sent = sent && send(fd, &message, sizeof(message)) && send(fd, parcel.bytes.data(), parcel.bytes.size());
    }
    return sent;
  };
  const auto receive_all = [this](int fd, std::vector<Parcel>& parcels) {
    std::size_t count = 0;
    bool received = receive(fd, &count, sizeof(count));
    for (std::size_t i = 0; received && i < count; ++i) {
      Message message{};
      received = receive(fd, &message, sizeof(message));
      if (!received) break;
      parcels.push_back({message.peer, std::vector<std::byte>(message.bytes)});
      received = receive(fd, parcels.back().bytes.data(), message.bytes);
    }
    return received;
  };
  std::vector<Parcel> outgoing;
  for (const Call& call : calls) {
    if (call.kind == Kind::kSend) outgoing.push_back({call.peer, {call.from, call.from + bytes_of(call)}});
  }
  std::vector<Parcel> incoming;
  if (rank_ != 0) {
    if (!send_all(fds_[0], outgoing) || !receive_all(fds_[0], incoming)) return fail(kRemoteError);
  } else {
    std::vector<std::vector<Parcel>> for_rank(size_);
    for (int r = 0; r < size_; ++r) {
      std::vector<Parcel> from_rank;
      if (r == 0) {
        from_rank = std::move(outgoing);
      } else if (!receive_all(fds_[r], from_rank)) {
        return fail(kRemoteError);
      }
      for (Parcel& parcel : from_rank) for_rank[parcel.peer].push_back({r, std::move(parcel.bytes)});
    }
    for (int r = 1; r < size_; ++r) {
      if (!send_all(fds_[r], for_rank[r])) return fail(kRemoteError);
    }
    incoming = std::move(for_rank[0]);
  }
  for (const Call& call : calls) {
    if (call.kind != Kind::kRecv) continue;
    const auto found =
        std::find_if(incoming.begin(), incoming.end(), [&](const Parcel& parcel) { return parcel.peer == call.peer; });
    if (found == incoming.end() || found->bytes.size() != bytes_of(call)) return fail(kInvalidUsage);
    std::copy(found->bytes.begin(), found->bytes.end(), call.to);
    incoming.erase(found);
  }
}

}  // namespace gpu_double
