// How a thread waits for links: first awake, for a bounded time, then asleep in the kernel.
//
// Waking a sleeping thread takes tens of microseconds, a cache line a tenth of one; so it pays to stay awake for about
// as long as a wake-up takes. How long that is depends on the machine: a virtual processor that halts may be away for a
// millisecond. Where the one that is waited for may need this very core (crowd.hpp), the thread gives it away at every
// turn instead of spinning, for about as long as such waits have taken lately: whoever is waited for may stand behind
// another program on another core, and comes to this one only when nobody is awake here. Where the core comes back late
// again and again another program has it that does not wait; then the thread sleeps at once, for a while.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <poll.h>

#include "base/clock.hpp"
#include "base/owned.hpp"
#include "transport/link.hpp"

namespace ringcore::transport {

class Waiter {
 public:
  // `spin`: how long `stay_awake` answers true at least, on a core of one's own.
  explicit Waiter(Nanoseconds spin);

  // A wait begins.
  void begin() { awake_since_ = 0; }
  // Something moved: start over.
  void active(const Clock& clock);
  // Spends a moment awake; false when it is time to sleep. `shares`: another rank may need this core.
  bool stay_awake(const Clock& clock, Nanoseconds now, bool shares);
  // Spends a shorter moment awake, without a look at the clock.
  static void look_again();
  // A wake-up has taken so long.
  void note_wake(Nanoseconds took);
  // A core that was given away has come back.
  void note_yield(Nanoseconds begin, Nanoseconds end);
  // On a core that others may need, something has moved after so long.
  void note_wait(Nanoseconds took);
  Nanoseconds idle_for(Nanoseconds now) const { return awake_since_ == 0 ? 0 : now - awake_since_; }

  // What to sleep on: the links' descriptors, which may be asked for only by whoever holds the links, and the bell.
  std::vector<pollfd> wait_set(std::span<Link* const> links) const;
  // Sleeps until one of them is ready, `wake` is called, or `limit` has passed. The links need not be held.
  void sleep(std::vector<pollfd> wait_set, Nanoseconds limit);
  // Wakes a sleeper, now or when it next sleeps. From any thread.
  void wake();

 private:
  Nanoseconds limit(bool shares) const;

  Nanoseconds spin_;
  Nanoseconds wake_ = 0;  // how long wake-ups take, the last ones counting most
  Nanoseconds wait_;  // likewise waits on a shared core, of those for which it may be worth while to stay awake
  bool shared_ = false;  // this wait is one
  Nanoseconds suspects_until_ =
      0;  // its core has come back late: if it does so again by then, another program wants it
  Nanoseconds yields_from_ = 0;  // until then it sleeps instead of giving its core away
  Nanoseconds awake_since_ = 0;
  Fd bell_;
};

}  // namespace ringcore::transport
