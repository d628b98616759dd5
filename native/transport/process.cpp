#include "transport/process.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/owned.hpp"

namespace ringcore::transport {
namespace {

// What proc(5) says of a process or a thread in its `stat`.
struct Stat {
  char state = 'X';
  unsigned flags = 0;
  unsigned long user_ticks = 0;
  unsigned long system_ticks = 0;
};

constexpr unsigned kExiting = 0x4;  // PF_EXITING

std::optional<Stat> read_stat(const std::filesystem::path& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text;
  const ssize_t bytes = file.get() < 0 ? -1 : ::read(file.get(), text.data(), text.size());
  if (bytes <= 0) return std::nullopt;
  const std::string line(text.data(), static_cast<std::size_t>(bytes));
  // Its name stands in brackets, and may hold anything.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  Stat stat;
  long skipped = 0;
  fields >> stat.state;
  for (int i = 0; i < 5; ++i) fields >> skipped;  // parent, group, session, terminal and its group
  fields >> stat.flags;
  for (int i = 0; i < 4; ++i) fields >> skipped;  // page faults
  fields >> stat.user_ticks >> stat.system_ticks;
  return fields ? std::optional(stat) : std::nullopt;
}

bool is_runnable(const std::filesystem::path& thread) {
  const std::optional<Stat> stat = read_stat(thread / "stat");
  return stat && stat->state == 'R';
}

}  // namespace

Process Process::at_other_end(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  const bool known = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0;
  return Process(known ? credentials.pid : 0);
}

Process::Process(pid_t pid) : pid_(pid), handle_(pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1) {}

bool Process::has_ended() const {
  pollfd handle{handle_.get(), POLLIN, 0};
  return handle_.get() >= 0 && ::poll(&handle, 1, 0) > 0;
}

bool Process::end() const {
  if (handle_.get() < 0) return false;
  return ::syscall(SYS_pidfd_send_signal, handle_.get(), SIGKILL, nullptr, 0) == 0 || errno == ESRCH;
}

bool Process::wants_to_run() {
  if (pid_ <= 0) return false;
  const std::filesystem::path folder = "/proc/" + std::to_string(pid_);
  const std::optional<Stat> stat = read_stat(folder / "stat");
  if (!stat || std::string("TtZX").find(stat->state) != std::string::npos || (stat->flags & kExiting) != 0)
    return false;
  const std::uint64_t ran = stat->user_ticks + stat->system_ticks;
  if (std::exchange(ran_, ran).value_or(ran) != ran) return true;
  std::error_code error;
  for (std::filesystem::directory_iterator thread(folder / "task", error), end; !error && thread != end;
       thread.increment(error)) {
    if (is_runnable(thread->path())) return true;
  }
  return false;
}

}  // namespace ringcore::transport
