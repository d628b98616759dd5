// An encrypted stream after its handshake: the peer has the keys and says anything, as records and as no records, while
// this end sends, receives, and renews its keys.
#include "transport/secure_stream.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

using namespace transport;

// Changes nothing, so that what the fuzzer makes up is what is decrypted; its tag says under which key and number.
class NoCipher final : public RecordCipher {
 public:
  bool seal(std::uint64_t number, std::span<const std::byte> /*header*/, std::span<const std::byte> first,
            std::span<const std::byte> rest, std::byte type, std::byte* out) override {
    out = std::copy(first.begin(), first.end(), out);
    out = std::copy(rest.begin(), rest.end(), out);
    *out++ = type;
    const Tag tag = tag_of(number);
    std::copy(tag.begin(), tag.end(), out);
    return true;
  }
  std::optional<std::byte> open(std::uint64_t number, std::span<const std::byte> /*header*/,
                                std::span<const std::byte> sealed, std::byte* text) override {
    const Tag tag = tag_of(number);
    if (!std::equal(tag.begin(), tag.end(), sealed.end() - kTagBytes)) return std::nullopt;
    const auto body = sealed.first(sealed.size() - kTagBytes);
    std::copy(body.begin(), body.end() - 1, text);
    return body.back();
  }
  bool renew() override {
    ++key_;
    return true;
  }

 private:
  using Tag = std::array<std::byte, kTagBytes>;
  Tag tag_of(std::uint64_t number) const {
    Tag tag{};
    std::memcpy(tag.data(), &key_, sizeof(key_));
    std::memcpy(tag.data() + sizeof(key_), &number, sizeof(number));
    return tag;
  }

  std::uint64_t key_ = 0;
};

class NoHandshake final : public Handshake {
 public:
  std::optional<RecordCiphers> advance(Wire& /*wire*/, Buffer& /*unsent*/) override {
    return RecordCiphers{std::make_unique<NoCipher>(), std::make_unique<NoCipher>()};
  }
};

class Memory final : public Wire {
 public:
  std::size_t send(std::span<const std::byte> bytes) override {
    const std::size_t taken = std::min(bytes.size(), room);
    room -= taken;
    sent.insert(sent.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
    return taken;
  }
  std::size_t receive(std::span<std::byte> out) override {
    const std::size_t got = std::min({out.size(), come.size(), at_once});
    std::copy_n(come.begin(), got, out.begin());
    come.erase(come.begin(), come.begin() + static_cast<std::ptrdiff_t>(got));
    return got;
  }
  bool ended() const override { return closed && come.empty(); }

  std::vector<std::byte> sent;
  std::vector<std::byte> come;
  std::size_t room = 0;
  std::size_t at_once = 1;
  bool closed = false;
};

// The peer's end of the same connection: what it is sent is read by the code that is tested, and has to be what was sent.
class Checked {
 public:
  Checked() : stream_(wire_, std::make_unique<NoHandshake>()) {}

  void read(std::vector<std::byte>& sent, const std::vector<std::byte>& said) {
    wire_.at_once = sent.size();
    wire_.come.insert(wire_.come.end(), sent.begin(), sent.end());
    sent.clear();
    std::array<std::byte, 4096> out;
    while (const std::size_t got = stream_.receive(out)) {
      require(read_ + got <= said.size() && std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(got),
                                                       said.begin() + static_cast<std::ptrdiff_t>(read_)),
              "what is sent is what was given");
      read_ += got;
    }
    // An alert of this end's is what the peer may fail with.
    require(!stream_.failure() || stream_.failure()->what.starts_with("could not decrypt"),
            "what is sent is well formed");
  }

 private:
  Memory wire_;
  SecureStream stream_;
  std::size_t read_ = 0;
};

class Fuzzed {
 public:
  explicit Fuzzed(Input& bytes) : bytes_(bytes), stream_(wire_, std::make_unique<NoHandshake>()) {
    stream_.limit_bytes_per_key(1 + bytes.take<std::uint8_t>());
  }

  void act() {
    switch (bytes_.below(8)) {
      case 0: send(); break;
      case 1: receive(); break;
      case 2: wire_.room += bytes_.take<std::uint16_t>(); break;
      case 3: wire_.at_once = 1 + bytes_.take<std::uint16_t>(); break;
      case 4: {
        const Bytes piece = bytes_.piece(bytes_.take<std::uint8_t>());
        wire_.come.insert(wire_.come.end(), piece.begin(), piece.end());
        break;
      }
      case 5: wire_.closed = bytes_.below(8) == 0; break;
      default: record(); break;
    }
    if (!stream_.failure()) peer_.read(wire_.sent, said_);
  }

 private:
  void send() {
    std::vector<std::byte> data(bytes_.take<std::uint16_t>());
    for (std::byte& byte : data) byte = static_cast<std::byte>(given_++);
    const std::size_t first = std::min<std::size_t>(data.size(), bytes_.take<std::uint8_t>());
    const bool ended = stream_.ended();
    const std::size_t taken = stream_.send(std::span(data).first(first), std::span(data).subspan(first));
    require(taken <= data.size() && (!ended || taken == 0), "no more is sent than was given");
    said_.insert(said_.end(), data.begin(), data.begin() + static_cast<std::ptrdiff_t>(taken));
    given_ -= data.size() - taken;
  }

  void receive() {
    std::vector<std::byte> out(bytes_.take<std::uint16_t>());
    require(stream_.receive(out) <= out.size(), "no more is read than was asked for");
  }

  // One that decrypts, as a rule, of any type.
  void record() {
    const bool update = bytes_.below(8) == 0;
    const std::array<std::byte, 5> words{std::byte{24}, {}, {}, std::byte{1}, static_cast<std::byte>(bytes_.below(3))};
    const Bytes text = update ? Bytes(words) : bytes_.piece(bytes_.take<std::uint8_t>());
    constexpr std::array<unsigned char, 4> kTypes{23, 22, 21, 0};
    const std::byte type{update ? std::uint8_t{22} : kTypes[bytes_.below(4)]};
    const std::size_t padding = bytes_.below(4) == 0 ? bytes_.take<std::uint8_t>() : 0;
    const std::size_t sealed = text.size() + 1 + padding + RecordCipher::kTagBytes;
    std::vector<std::byte> record(5 + sealed);
    record[0] = std::byte{23};
    record[1] = record[2] = std::byte{3};
    record[3] = static_cast<std::byte>(sealed >> 8);
    record[4] = static_cast<std::byte>(sealed);
    const std::vector<std::byte> zeros(padding);
    std::vector<std::byte> whole(text.begin(), text.end());
    // Padding stands behind the type: what `seal` takes for the type is the last zero.
    if (padding > 0) {
      whole.push_back(type);
      whole.insert(whole.end(), zeros.begin(), zeros.end() - 1);
    }
    cipher_.seal(number_++, {}, whole, {}, padding > 0 ? std::byte{0} : type, record.data() + 5);
    if (update) {
      cipher_.renew();
      number_ = 0;
    }
    wire_.come.insert(wire_.come.end(), record.begin(), record.end());
  }

  Input& bytes_;
  Memory wire_;
  SecureStream stream_;
  NoCipher cipher_;  // the peer's
  std::uint64_t number_ = 0;
  std::vector<std::byte> said_;
  std::size_t given_ = 0;
  Checked peer_;
};

}  // namespace

void secure_stream(Bytes input) {
  Input bytes(input);
  Fuzzed fuzzed(bytes);
  while (!bytes.empty()) fuzzed.act();
}

}  // namespace ringcore::fuzz
