// The loop of `ringcore-switch`: a switch, a UDP socket and a clock.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "aggregation/socket.hpp"
#include "aggregation/switch.hpp"

namespace ringcore::aggregation {

struct DaemonConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any
  std::optional<std::pair<std::string, std::uint16_t>> parent;
  SwitchConfig settings;
};

class Daemon {
 public:
  // Throws Error{kResource, kInvalidArgument}.
  explicit Daemon(const DaemonConfig& config);

  std::string address() const { return describe(socket_.address()); }
  // Until `interrupted` says so, which is asked now and then.
  void run(const std::function<bool()>& interrupted);
  // What there is to say now; from any thread.
  struct State {
    Switch::Counts counts;
    std::size_t sessions = 0;
    std::size_t held_bytes = 0;
  };
  State state() const;

 private:
  void flush(Outbox& out);

  Socket socket_;
  mutable std::mutex mutex_;  // Guards: switch_.
  Switch switch_;
};

}  // namespace ringcore::aggregation
