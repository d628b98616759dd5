// What a communicator of the double does: every collective goes through its rank 0, over sockets of this host.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "registration.hpp"

namespace gpu_double {

enum class Kind : int { kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv, kExchange };

// A call of NCCL, with addresses that the host can see.
struct Call {
  Kind kind{};
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;
  int dtype = 0;
  int op = 0;
  int peer = 0;  // or root
  std::shared_ptr<const Registration> from_registered;
  std::shared_ptr<const Registration> to_registered;
};

std::size_t bytes_of(const Call& call);

// From now on communicators of this rank do not come where all have to meet; -1: all do again.
void stay_away(int rank);

// Every communicator of this process loses its connections.
void disconnect_all();

// NCCL's results.
inline constexpr int kSuccess = 0;
inline constexpr int kUnhandledCudaError = 1;
inline constexpr int kInternalError = 3;
inline constexpr int kInvalidArgument = 4;
inline constexpr int kInvalidUsage = 5;
inline constexpr int kRemoteError = 6;
inline constexpr int kInProgress = 7;

// Opens what the ranks of a new communicator connect to; its name.
std::string open_hub();

class Communicator {
 public:
  // Connects in the background. Refused where two ranks have one device, unless NCCL_MULTI_RANK_GPU_ENABLE allows it.
  Communicator(std::string hub, int rank, int size, int device);
  ~Communicator();
  int state() const { return state_ == kSuccess && meets_ ? kInProgress : state_.load(); }
  int size() const { return size_; }
  void abort();
  void disconnect() { fail(kRemoteError); }
  // Runs the calls of one group: in a stream.
  void run(std::span<const Call> calls);
  // Waits in the background until all ranks have come here with the same number, then calls `then`.
  void meet(std::size_t number, std::function<void()> then);
  // Until that has ended.
  void wait_for_meeting();

 private:
  void connect();
  void fault();
  void run_all(std::span<const Call> calls);
  void run_one(const Call& call);
  void run_hub(const Call& call);
  void exchange(std::span<const Call> calls);
  void fail(int result);
  bool meet_all(std::size_t number);
  void shut();
  bool send(int fd, const void* data, std::size_t bytes);
  bool receive(int fd, void* data, std::size_t bytes);

  std::string hub_;
  int rank_;
  int size_;
  int device_;
  std::atomic<int> state_ = kInProgress;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> meets_ = false;
  std::mutex mutex_;  // Guards: fds_ and meeting_fds_ while they are opened and shut.
  std::vector<int> fds_;  // of the hub: by rank; else the hub's first
  std::vector<int> meeting_fds_;  // the same, beside what streams do
  std::thread thread_;
  std::thread meeting_;
};

}  // namespace gpu_double
