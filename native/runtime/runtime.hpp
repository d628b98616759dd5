// Drives an engine in a real process: locks, waits, and keeps a progress thread for what nobody waits for.
//
// Whoever waits drives: a blocking call runs the engine on its own thread, so that a small collective costs no thread
// hop. The progress thread sleeps until a peer rings or a timer is due; it also beats the heart, natively, so that a
// rank that computes under Python's lock is not taken for dead.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "engine/engine.hpp"
#include "transport/companion.hpp"
#include "transport/crowd.hpp"
#include "transport/shm/segment.hpp"
#include "transport/waiter.hpp"

namespace ringcore {

struct RuntimeConfig {
  engine::EngineConfig engine;
  engine::EngineSettings settings;
  Nanoseconds spin = 100'000;  // how long a waiting thread stays awake before it sleeps
  int local_ranks = 1;         // ranks on this host: with more of them than cores nobody spins
  std::vector<std::shared_ptr<transport::Companion>> companions;
};

class Runtime {
 public:
  // Asked now and then, without locks held, by a thread that waits: true ends the wait (a signal has arrived).
  using Interrupted = std::function<bool()>;

  explicit Runtime(RuntimeConfig config);
  // Leaves, if `leave` was not called.
  ~Runtime();

  // Throws what Engine::submit throws, and Error{kShutdown} after `leave`. What is captured into a CUDA graph is part of
  // it when this returns, unless it was interrupted.
  void submit(const std::shared_ptr<engine::Operation>& operation, const Interrupted& interrupted = {});
  // Whether a group that has ended can be submitted again, see engine/request.hpp. Never waits for another thread.
  bool can_be_renewed(const std::shared_ptr<engine::Operation>& group, const engine::Call& call, std::size_t parts);
  // Who waits. Only when the caller is alone may a blocking call tell the peers that nothing else comes from this rank
  // until it is done, which is how deadlocks are found at once; and only when all threads that might submit something
  // wait is this told after a while, which is how they are found otherwise.
  enum class Caller : std::uint8_t {
    kAlone,  // the process has no other thread that might use the engine, now or later
    kCounted,  // one of those that `count_threads` has counted
    kUnknown,
  };
  // How many threads the process has that might use the engine, of those that wait as `kAlone` or `kCounted`. To be said by
  // each of them before it waits, in the order in which they have counted.
  void count_threads(int threads) { threads_ = threads; }
  // A thread that serves this runtime, by the kernel's number, and submits nothing.
  void add_service_thread(pid_t thread);
  void remove_service_thread(pid_t thread);

  // Submits and waits: the fast way for a blocking call. Returns early when interrupted.
  void run(const std::shared_ptr<engine::Operation>& operation, const Interrupted& interrupted,
           Caller caller = Caller::kAlone);
  // The first moment of `run`, for callers that hold a lock of their own (Python's) and would rather keep it than give it
  // away for an operation of a microsecond. Never waits for another thread. Go on with `run` when the operation was not
  // submitted, because it is not so small or the engine was busy, and with `wait` when it was.
  enum class Tried : std::uint8_t { kNotSubmitted, kSubmitted, kDone };
  Tried try_run(const std::shared_ptr<engine::Operation>& operation, Caller caller);
  // Waits until it is done or `limit` has passed; true when it is done.
  static constexpr Nanoseconds kForever = INT64_MAX;
  bool wait(engine::Operation& operation, Nanoseconds limit, const Interrupted& interrupted,
            Caller caller = Caller::kAlone);

  // On a server: until all ranks have left, or it is interrupted. Throws why the job has failed.
  void serve(const Interrupted& interrupted = {});
  // Tells the peers that this rank leaves, waits (bounded) until they know, and stops the thread. Idempotent. Without a
  // reason, first brings what all ranks have submitted to its end, and waits until GPUs have ended what was launched: at
  // most as long as any operation may take, or until it is interrupted.
  void leave(const std::string& reason, const Interrupted& interrupted = {});

  // This rank's index among the members of a process set, and how many they are; -1: this rank knows no such set.
  Rank rank(engine::ProcessSetId set);
  int size(engine::ProcessSetId set);
  engine::ProcessSetId add_process_set(std::vector<Rank> members, std::optional<engine::ProcessSetId> agreed = {});
  void remove_process_set(engine::ProcessSetId id);
  // See Engine::refuse. Of what is refused before there is an operation.
  void refuse(engine::ProcessSetId set, const std::string& name, const std::string& why);
  // See Engine::offer.
  void offer(std::span<const std::byte> offer);
  // What is recorded goes to the sink, or, without one, is kept to be taken.
  void start_timeline(std::unique_ptr<engine::SpanSink> sink = nullptr);
  // What was recorded since the last call; recording goes on.
  std::vector<engine::Span> take_timeline();
  std::vector<engine::Span> stop_timeline();
  std::string timeline_failure();  // see SpanSink::failure
  struct Statistics {
    std::uint64_t operations = 0;  // that have ended
    std::vector<engine::Pending> pending;
    Nanoseconds now = 0;
    std::map<std::string, transport::Link::Traffic> traffic;  // by transport
  };
  // For who looks at a running job: counts that are kept anyway.
  Statistics statistics();
  Nanoseconds waited_for_others();  // see Engine::waited_for_others
  std::shared_ptr<const Error> failure();
  std::optional<Rank> lost_rank();
  // By rank: "self", "shm", "tcp".
  std::vector<std::string> transports();
  // Whoever has made the links changes the one to this peer, while nobody else uses it. False, and nothing is changed, when
  // it is closed already.
  bool change_links(engine::Place peer, const std::function<void()>& change);
  bool needs_lane(engine::Place peer, int lane);  // see Engine::needs_lane
  // Of elastic jobs: an epoch, or the present one, and who the members are, by rank; and that the caller knows it, see
  // Engine::change.
  std::pair<std::uint32_t, std::vector<engine::Place>> members(std::optional<std::uint32_t> epoch);
  void accept_change(std::uint32_t epoch);
  // See Engine::hear_witness: what it is told is in Attention.
  void hear_witness(std::span<const std::byte> message);
  void lose_witness();
  void fail_on_change(bool fails);
  void excuse(std::vector<Rank> ranks);
  // See Engine::meet, arrivals. `let_in` waits until who wants the place is a member, or will be none; `become_member`, in a
  // process that joins, until it is one, which whatever it submits before does by itself. They throw why this rank cannot
  // go on.
  // `make_link` is called while nobody else uses the links.
  void meet(engine::Place place, const std::function<std::unique_ptr<transport::Link>()>& make_link);
  // Of each of these places, the number of the host whose memory it shares.
  std::vector<int> hosts_of(std::span<const engine::Place> places);
  std::vector<engine::Place> arrivals();
  // Whether who was met at this place, and is no member, will be none.
  bool is_turned_away(engine::Place place);
  void let_in(engine::Place place, const Interrupted& interrupted = {});
  void become_member(const Interrupted& interrupted = {});
  // Waits until GPUs have ended what this rank has launched on them. Throws why they cannot: Error{kMembershipChanged}
  // where ranks of an elastic job were lost meanwhile, or what has made the job fail.
  void await_devices(const Interrupted& interrupted = {});
  // What operations wait for can no longer come: they fail with this.
  void fail(const std::shared_ptr<const Error>& error);

  // What the Python side has to do: log warnings, tell the peers where its threads stand, and ask the witness.
  struct Attention {
    std::vector<std::string> warnings;
    bool stacks_wanted = false;
    std::optional<Rank> lost_rank;  // see Engine::lost_rank
    std::vector<std::vector<std::byte>> for_witness;
  };
  // Blocks until there is something to do or `limit` has passed; false once the runtime has stopped.
  bool wait_for_attention(Nanoseconds limit);
  Attention take_attention();
  void reply_stacks(const std::string& text);

 private:
  // Holds mutex_; whoever lets go of it tells of the operations that have ended meanwhile.
  class EngineLock;
  // A thread waits for an operation, as long as this lives. Held under mutex_.
  class Waiting;
  struct Wait {
    const engine::Operation* operation;
    const void* thread;
    pid_t number;  // the thread's, as the kernel counts
    Caller caller;
  };
  // A thread that has used the engine, while it lives.
  using User = std::weak_ptr<const void>;

  void check_running() const;
  // False: it was interrupted, and this process is no member yet.
  bool prepare_to_submit(EngineLock& lock, const Interrupted& interrupted);
  void become_member(EngineLock& lock, const Interrupted& interrupted);
  void throw_failure();
  bool note_thread();
  void add_user();
  bool all_threads_wait();
  bool looks_who_sleeps(Nanoseconds now);
  bool all_threads_sleep() const;
  void tell_who_waits(Nanoseconds now);
  template <class Ended>
  void drive(Ended ended, Nanoseconds limit, const Interrupted& interrupted, EngineLock& lock);
  void wind_down(EngineLock& lock, const Interrupted& interrupted);
  void change_engine(const std::function<void()>& change);
  void look_at_links();
  void follow_links();
  bool arm();
  void disarm();
  void record_wait(const engine::Operation& operation, Nanoseconds begin);
  Nanoseconds longest_nap(bool busy, Nanoseconds limit);
  std::vector<pollfd> wait_set(const transport::Waiter& waiter) const;
  void look_after_companions();
  void progress_loop();
  void collect_attention();

  SteadyClock clock_;
  std::mutex leaving_mutex_;  // Before mutex_.
  std::mutex mutex_;  // Guards: engine_, links_, crowd_, armed_, waiters_, drives_, submits_. Before attention_mutex_.
  std::atomic<int> contenders_ = 0;  // threads that wait for mutex_
  engine::Engine engine_;
  std::vector<transport::Link*> links_;
  const std::vector<std::shared_ptr<transport::Companion>> companions_;
  int looks_;  // of `try_run`
  const std::uint64_t serial_;  // from 1
  transport::Crowd crowd_;
  bool armed_ = false;  // peers ring when they write
  bool gathering_ = false;  // the progress thread naps: see kGather
  int waiters_ = 0;  // threads in `drive`
  int awaiting_devices_ = 0;  // ... of them in `await_devices`
  std::vector<Wait> waits_;  // of those that wait until their operation is done
  std::vector<pid_t> service_threads_;  // and the one that makes progress
  std::uint64_t events_ = 0;  // operations that had begun, been waited for or ended when it was last looked who sleeps
  Nanoseconds look_at_ = 0;  // when to look again
  bool slept_ = false;  // whether all threads did, the last time
  std::uint64_t drives_ = 0;  // calls of `drive` so far
  Nanoseconds drive_began_ = 0;  // the last of them
  Nanoseconds processors_counted_ = 0;
  std::uint64_t submits_ = 0;  // and of `submit`
  transport::Waiter driver_waiter_;
  transport::Waiter thread_waiter_;
  std::atomic<std::thread::id> only_thread_{};
  std::atomic<bool> several_threads_ = false;
  std::atomic<int> threads_ = 1;
  std::atomic<int> tellers_ = 0;  // threads that tell of operations that have ended
  std::mutex users_mutex_;  // Guards: users_. After mutex_.
  std::vector<User> users_;
  std::atomic<bool> leaving_ = false;  // nothing more can be submitted
  std::atomic<bool> stopped_ = false;
  std::mutex attention_mutex_;  // Guards: attention_.
  std::condition_variable attention_changed_;
  bool attention_ = false;
  std::thread thread_;
};

}  // namespace ringcore
