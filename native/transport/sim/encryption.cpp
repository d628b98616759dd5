#include "transport/sim/encryption.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "transport/secure_stream.hpp"

namespace ringcore::transport {
namespace {

constexpr std::uint64_t kBytesPerKey = 700;

std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

std::uint64_t mixed(std::uint64_t value, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) value = mixed(value * 31 + std::to_integer<std::uint64_t>(byte) + 1);
  return value;
}

class ToyCipher final : public RecordCipher {
 public:
  explicit ToyCipher(std::uint64_t key) : key_(key) {}

  bool seal(std::uint64_t number, std::span<const std::byte> header, std::span<const std::byte> first,
            std::span<const std::byte> rest, std::byte type, std::byte* out) override {
    std::size_t at = 0;
    for (const std::span<const std::byte> part : {first, rest, std::span<const std::byte>(&type, 1)}) {
      for (const std::byte byte : part) {
        out[at] = byte ^ stream(number, at);
        ++at;
      }
    }
    const Tag tag = tag_of(number, header, {out, at});
    std::memcpy(out + at, tag.data(), tag.size());
    return true;
  }

  std::optional<std::byte> open(std::uint64_t number, std::span<const std::byte> header,
                                std::span<const std::byte> sealed, std::byte* text) override {
    const auto body = sealed.first(sealed.size() - kTagBytes);
    const Tag tag = tag_of(number, header, body);
    if (!std::equal(tag.begin(), tag.end(), sealed.end() - kTagBytes)) return std::nullopt;
    const std::size_t last = body.size() - 1;
    const std::byte type = body[last] ^ stream(number, last);
    for (std::size_t at = 0; at < last; ++at) text[at] = body[at] ^ stream(number, at);
    return type;
  }

  bool renew() override {
    key_ = mixed(key_ + 1);
    return true;
  }

 private:
  using Tag = std::array<std::byte, kTagBytes>;

  std::byte stream(std::uint64_t number, std::size_t at) const {
    return static_cast<std::byte>(mixed(key_ + number * 0x9e3779b97f4a7c15ULL + at));
  }
  Tag tag_of(std::uint64_t number, std::span<const std::byte> header, std::span<const std::byte> body) const {
    const std::uint64_t words[2] = {mixed(mixed(key_ + number, header), body), mixed(key_ ^ body.size())};
    Tag tag;
    std::memcpy(tag.data(), words, tag.size());
    return tag;
  }

  std::uint64_t key_;
};

// Each end says a number, and then what shows that it has read the other's with the secret that both know.
class ToyHandshake final : public Handshake {
 public:
  ToyHandshake(std::uint64_t secret, std::uint64_t number, bool dials)
      : secret_(secret), mine_(number), dials_(dials) {}

  std::optional<RecordCiphers> advance(Wire& wire, Buffer& unsent) override {
    if (!std::exchange(began_, true)) say(unsent, mine_);
    if (!hear(wire)) return std::nullopt;
    if (!theirs_) {
      theirs_ = std::exchange(heard_, 0);
      heard_bytes_ = 0;
      say(unsent, shown(dials_));
      if (!hear(wire)) return std::nullopt;
    }
    if (heard_ != shown(!dials_)) throw Failure("the peer does not know the secret");
    return RecordCiphers{std::make_unique<ToyCipher>(shown(dials_) + 1),
                         std::make_unique<ToyCipher>(shown(!dials_) + 1)};
  }

 private:
  // What the end that has dialled, or the other one, shows.
  std::uint64_t shown(bool dialler) const {
    const std::uint64_t of_dialler = dials_ ? mine_ : *theirs_;
    const std::uint64_t of_other = dials_ ? *theirs_ : mine_;
    return mixed(mixed(mixed(secret_ + of_dialler) + of_other) + (dialler ? 1 : 2));
  }

  static void say(Buffer& unsent, std::uint64_t number) {
    std::memcpy(unsent.room().data(), &number, sizeof(number));
    unsent.add(sizeof(number));
  }

  bool hear(Wire& wire) {
    const auto room = std::as_writable_bytes(std::span(&heard_, 1)).subspan(heard_bytes_);
    if (!room.empty()) heard_bytes_ += wire.receive(room);
    return heard_bytes_ == sizeof(heard_);
  }

  std::uint64_t secret_;
  std::uint64_t mine_;
  bool dials_;
  bool began_ = false;
  std::optional<std::uint64_t> theirs_;
  std::uint64_t heard_ = 0;
  std::size_t heard_bytes_ = 0;
};

class LaneWire final : public Wire {
 public:
  LaneWire(Link& link, int lane) : link_(link), lane_(lane) {}
  std::size_t send(std::span<const std::byte> bytes) override { return link_.write(lane_, bytes); }
  std::size_t receive(std::span<std::byte> room) override {
    const std::size_t got = link_.read(lane_, room);
    ended_ = got == 0 && link_.failure().has_value();
    return got;
  }
  bool ended() const override { return ended_; }

 private:
  Link& link_;
  int lane_;
  bool ended_ = false;
};

// As Connection (tcp/connection.hpp) is to a socket.
struct SecureLane {
  SecureLane(Link& inner, int lane, std::uint64_t secret, std::uint64_t number, bool dials)
      : wire(inner, lane), stream(wire, std::make_unique<ToyHandshake>(secret, number, dials)) {
    stream.limit_bytes_per_key(kBytesPerKey);
  }
  SecureLane(const SecureLane&) = delete;
  SecureLane& operator=(const SecureLane&) = delete;

  bool fill() {
    const bool opened = stream.advance();
    const std::size_t got = text.size() < Buffer::kBytes ? stream.receive(text.room()) : 0;
    text.add(got);
    return opened || got > 0;
  }

  LaneWire wire;
  SecureStream stream;
  Buffer text;
};

class ToyEncryptedLink final : public Link {
 public:
  ToyEncryptedLink(std::unique_ptr<Link> inner, Rank self, Rank peer, std::uint64_t secret)
      : inner_(std::move(inner)), self_(self) {
    for (int lane = 0; lane < kLaneCount; ++lane) {
      const std::uint64_t of_lane = mixed(secret + static_cast<std::uint64_t>(lane));
      const std::uint64_t number = mixed(of_lane + static_cast<std::uint64_t>(self));
      lanes_[static_cast<std::size_t>(lane)] =
          std::make_unique<SecureLane>(*inner_, lane, of_lane, number, self < peer);
    }
  }

  void want(int lane) override { inner_->want(lane); }
  bool has(int lane) const override { return inner_->has(lane); }

  std::size_t write(int lane, std::span<const std::byte> bytes) override { return write(lane, bytes, {}); }
  std::size_t write(int lane, std::span<const std::byte> first, std::span<const std::byte> rest) override {
    if (!has(lane) || failure()) return 0;
    const std::size_t taken = of(lane).stream.send(first, rest);
    short_writes_[static_cast<std::size_t>(lane)] = taken < first.size() + rest.size();
    return taken;
  }
  std::span<const std::byte> peek(int lane) override {
    if (has(lane)) of(lane).fill();
    return std::as_const(of(lane).text).bytes();
  }
  void consume(int lane, std::size_t bytes) override { of(lane).text.drop(bytes); }
  std::size_t read(int lane, std::span<std::byte> out) override {
    if (!has(lane)) return 0;
    SecureLane& from = of(lane);
    if (from.text.empty()) return from.stream.receive(out);
    const std::size_t taken = std::min(from.text.size(), out.size());
    std::memcpy(out.data(), from.text.bytes().data(), taken);
    from.text.drop(taken);
    return taken;
  }

  std::optional<std::string> failure() const override {
    for (const auto& lane : lanes_) {
      if (lane->stream.failure()) return lane->stream.failure()->told(self_);
    }
    return inner_->failure();
  }
  bool last_words_may_come() const override { return inner_->last_words_may_come(); }
  void check() override { inner_->check(); }
  bool blocked() override {
    return holds_unsent() || std::any_of(short_writes_.begin(), short_writes_.end(), std::identity());
  }
  bool holds_unsent() const override {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->stream.has_unsent(); });
  }

  bool arm() override {
    bool news = inner_->arm();
    for (int lane = 0; lane < kLaneCount; ++lane) news = (has(lane) && of(lane).fill()) || news;
    return news;
  }
  void disarm() override { inner_->disarm(); }
  void add_wait_fds(std::vector<pollfd>&) const override {}
  bool peer_wants_to_run() override { return inner_->peer_wants_to_run(); }
  std::optional<Nanoseconds> data_silence() const override { return inner_->data_silence(); }
  Pace pace() const override { return inner_->pace(); }
  std::string_view transport() const override { return inner_->transport(); }

 private:
  SecureLane& of(int lane) { return *lanes_[static_cast<std::size_t>(lane)]; }

  std::unique_ptr<Link> inner_;
  Rank self_;
  std::array<std::unique_ptr<SecureLane>, kLaneCount> lanes_;
  std::array<bool, kLaneCount> short_writes_{};
};

}  // namespace

std::unique_ptr<Link> make_toy_encrypted_link(std::unique_ptr<Link> inner, Rank self, Rank peer, std::uint64_t secret) {
  return std::make_unique<ToyEncryptedLink>(std::move(inner), self, peer, secret);
}

}  // namespace ringcore::transport
