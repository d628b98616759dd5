// Carries packets between network namespaces as a long network does: late, at a rate, and not all of them.
//
//     distant RATE ROUND_TRIP LOSS QUEUE ADDRESS=PID...
//
// Makes a device `wan0` in the network namespace of each process, and carries IPv4 packets between their addresses until
// standard input ends: RATE bytes a second from and to each of them, ROUND_TRIP seconds there and back, a part LOSS of the
// packets lost, each by itself, and at either end of a cable a queue of QUEUE seconds, behind which packets are lost as
// well. netem would do this; it is a module that not every machine has. Needs root.

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Seconds = double;
using Packet = std::vector<char>;

constexpr std::size_t kLargest = 65536;
constexpr std::size_t kDestination = 16;  // where the header of an IPv4 packet has it
// Packets are looked for so often, so that waking up for each of them does not take a processor from their hosts.
constexpr std::chrono::microseconds kTick{250};

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

Seconds now() { return std::chrono::duration<Seconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int opened(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) fail(path);
  return descriptor;
}

void enter(int network) {
  if (::setns(network, CLONE_NEWNET) != 0) fail("a network namespace cannot be entered");
}

/// A descriptor from and to which the packets of a new device go, in the network namespace of a process.
int make_device(const std::string& pid) {
  const int own = opened("/proc/self/ns/net", O_RDONLY);
  const int theirs = opened("/proc/" + pid + "/ns/net", O_RDONLY);
  enter(theirs);
  const int device = opened("/dev/net/tun", O_RDWR | O_NONBLOCK);
  ifreq request{};
  std::strncpy(request.ifr_name, "wan0", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (::ioctl(device, TUNSETIFF, &request) != 0) fail("no device can be made");
  enter(own);
  ::close(own);
  ::close(theirs);
  return device;
}

/// One direction of a host's cable: packets leave it one after the other.
class Cable {
 public:
  Cable(double rate, Seconds queue) : rate_(rate), queue_(queue) {}

  /// When a packet that comes at `when` has left; none: the queue is full.
  std::optional<Seconds> passes(std::size_t nbytes, Seconds when) {
    const Seconds begin = std::max(when, free_at_);
    if (begin - when > queue_) return std::nullopt;
    free_at_ = begin + static_cast<double>(nbytes) / rate_;
    return free_at_;
  }

 private:
  double rate_;
  Seconds queue_;
  Seconds free_at_ = 0;
};

struct Host {
  int device;
  Cable out;
  Cable in;
};

/// All cables, and the packets that are on the way.
class Network {
 public:
  Network(double rate, Seconds round_trip, double loss, Seconds queue)
      : rate_(rate), delay_(round_trip / 2), queue_(queue), lost_(loss) {}

  void add(const std::string& address, int device) {
    in_addr place{};
    if (::inet_pton(AF_INET, address.c_str(), &place) != 1) throw std::invalid_argument(address + " is no address");
    hosts_.emplace(place.s_addr, Host{device, {rate_, queue_}, {rate_, queue_}});
  }

  [[nodiscard]] std::vector<pollfd> inputs() const {
    std::vector<pollfd> all{{STDIN_FILENO, POLLIN, 0}};
    for (const auto& [address, host] : hosts_) all.push_back({host.device, POLLIN, 0});
    return all;
  }

  /// What the hosts have sent.
  void take() {
    for (auto& [address, host] : hosts_) {
      for (ssize_t got; (got = ::read(host.device, buffer_.data(), buffer_.size())) > 0;) {
        if (buffer_[0] >> 4 != 4) continue;  // IPv6 looks for neighbours by itself
        if (lost_(random_)) continue;
        Packet packet(buffer_.begin(), buffer_.begin() + got);
        const auto left = host.out.passes(packet.size(), now());
        if (left) crossing_.emplace(*left + delay_, std::move(packet));
      }
    }
  }

  /// Carries on whatever it is time for.
  void deliver() {
    for (; is_time_for(crossing_); crossing_.erase(crossing_.begin())) {
      auto& [when, packet] = *crossing_.begin();
      in_addr_t address{};
      std::memcpy(&address, packet.data() + kDestination, sizeof address);
      const auto found = hosts_.find(address);
      if (found == hosts_.end()) continue;
      const auto passed = found->second.in.passes(packet.size(), when);
      if (passed) arriving_.emplace(*passed, std::pair{found->second.device, std::move(packet)});
    }
    for (; is_time_for(arriving_); arriving_.erase(arriving_.begin())) {
      const auto& [device, packet] = arriving_.begin()->second;
      // A host that has no room for it, or has taken its device down, loses it.
      [[maybe_unused]] const ssize_t written = ::write(device, packet.data(), packet.size());
    }
  }

  [[nodiscard]] bool is_idle() const { return crossing_.empty() && arriving_.empty(); }

 private:
  template <typename Event>
  static bool is_time_for(const std::multimap<Seconds, Event>& events) {
    return !events.empty() && events.begin()->first <= now();
  }

  double rate_;
  Seconds delay_;
  Seconds queue_;
  std::bernoulli_distribution lost_;
  std::mt19937 random_;
  std::map<in_addr_t, Host> hosts_;
  std::multimap<Seconds, Packet> crossing_;  // by when they come to the cable of their destination
  std::multimap<Seconds, std::pair<int, Packet>> arriving_;  // to a device, by when they have passed that cable
  std::vector<char> buffer_ = std::vector<char>(kLargest);
};

int carry(const std::vector<std::string>& words) {
  Network network(std::stod(words[0]), std::stod(words[1]), std::stod(words[2]), std::stod(words[3]));
  for (auto place = words.begin() + 4; place != words.end(); ++place) {
    const auto middle = place->find('=');
    network.add(place->substr(0, middle), make_device(place->substr(middle + 1)));
  }
  // A network does not become slower when its hosts have much to do, nor does it wait longer than it means to.
  ::setpriority(PRIO_PROCESS, 0, -15);
  ::prctl(PR_SET_TIMERSLACK, 1000);
  std::puts("ready");
  std::fflush(stdout);
  for (auto inputs = network.inputs();;) {
    const int wait_ms = network.is_idle() ? -1 : 0;
    if (::poll(inputs.data(), inputs.size(), wait_ms) < 0 && errno != EINTR) fail("poll");
    if (inputs.front().revents != 0) return 0;
    network.take();
    network.deliver();
    std::this_thread::sleep_for(kTick);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 5) {
    std::fputs("distant RATE ROUND_TRIP LOSS QUEUE ADDRESS=PID...\n", stderr);
    return 2;
  }
  try {
    return carry(words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distant: %s\n", error.what());
    return 1;
  }
}
