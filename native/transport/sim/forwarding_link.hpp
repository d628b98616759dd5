// A link that is another one, for tests and fuzzers: they change what they name.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/link.hpp"

namespace ringcore::transport {

class ForwardingLink : public Link {
 public:
  explicit ForwardingLink(std::unique_ptr<Link> link) : link_(std::move(link)) {}

  void want(int lane) override { link_->want(lane); }
  bool has(int lane) const override { return link_->has(lane); }
  using Link::write;
  std::size_t write(int lane, std::span<const std::byte> bytes) override { return link_->write(lane, bytes); }
  std::span<const std::byte> peek(int lane) override { return link_->peek(lane); }
  void consume(int lane, std::size_t bytes) override { link_->consume(lane, bytes); }
  std::size_t read(int lane, std::span<std::byte> out) override { return link_->read(lane, out); }
  std::optional<std::string> failure() const override { return link_->failure(); }
  bool last_words_may_come() const override { return link_->last_words_may_come(); }
  void check() override { link_->check(); }
  bool peer_wants_to_run() override { return link_->peer_wants_to_run(); }
  bool blocked() override { return link_->blocked(); }
  bool holds_unsent() const override { return link_->holds_unsent(); }
  bool arm() override { return link_->arm(); }
  void disarm() override { link_->disarm(); }
  void add_wait_fds(std::vector<pollfd>& fds) const override { link_->add_wait_fds(fds); }
  std::optional<Nanoseconds> data_silence() const override { return link_->data_silence(); }
  Pace pace() const override { return link_->pace(); }
  std::string_view transport() const override { return link_->transport(); }

 private:
  std::unique_ptr<Link> link_;
};

}  // namespace ringcore::transport
