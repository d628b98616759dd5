#include "transport/tcp/readiness.hpp"

#include <array>
#include <cerrno>

#include <sys/epoll.h>

#include "base/error.hpp"

namespace ringcore::transport {
namespace {

// What is more is seen the next time.
constexpr int kMostAtOnce = 64;

}  // namespace

SocketReadiness::SocketReadiness() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw Error(ErrorKind::kResource, with_errno("cannot create an epoll", errno));
}

// Of each change the kernel tells once: what has been drained is not found again before more has come.
SocketReadiness::Watch::Watch(SocketReadiness& readiness, int fd, std::optional<Rank> bytes_of)
    : readiness_(readiness), fd_(fd), bytes_of_(bytes_of) {
  epoll_event event{};
  event.events = EPOLLET | EPOLLRDHUP | (bytes_of ? EPOLLIN : 0U);
  event.data.ptr = this;
  if (::epoll_ctl(readiness.epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Error(ErrorKind::kResource, with_errno("cannot watch a socket", errno));
  }
  readiness.for_bytes_ += bytes_of ? 1 : 0;
  note(true);
}

// By name: a forked child may keep the connection open, and the kernel would go on telling of it.
SocketReadiness::Watch::~Watch() {
  ::epoll_ctl(readiness_.epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  readiness_.for_bytes_ -= bytes_of_ ? 1 : 0;
}

void SocketReadiness::Watch::note(bool readable) {
  if (!bytes_of_) return;
  const auto peer = static_cast<std::size_t>(*bytes_of_);
  if (readiness_.news_.size() <= peer) readiness_.news_.resize(peer + 1);
  readiness_.news_[peer] = readable ? 1 : 0;
}

void SocketReadiness::ask() {
  std::array<epoll_event, kMostAtOnce> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kMostAtOnce, 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    Watch& watch = *static_cast<Watch*>(event.data.ptr);
    watch.note(true);
    if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) watch.closed_ = true;
  }
}

}  // namespace ringcore::transport
