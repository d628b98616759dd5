#include "transport/secure_stream.hpp"

#include <algorithm>
#include <cstring>

namespace ringcore::transport {
namespace {

// Types of records (RFC 8446, section 5.1), and what is said in them.
constexpr std::byte kAlert{21};
constexpr std::byte kHandshake{22};
constexpr std::byte kData{23};
constexpr std::byte kFatal{2};
constexpr std::byte kCloseNotify{0};
constexpr std::byte kBadRecordMac{20};
// A new key of the sender's. The last byte asks for none of the receiver's in return; 1 would.
constexpr std::array<std::byte, 5> kKeyUpdate{std::byte{24}, {}, {}, std::byte{1}, std::byte{0}};

using Header = std::array<std::byte, SecureStream::kHeaderBytes>;

// Encrypted records say that they are data of TLS 1.2.
Header header_of(std::size_t sealed) {
  return {kData, std::byte{3}, std::byte{3}, static_cast<std::byte>(sealed >> 8), static_cast<std::byte>(sealed)};
}

constexpr std::size_t kMostRecord = SecureStream::kHeaderBytes + SecureStream::kMostText + SecureStream::kBehindText;
static_assert(Buffer::kBytes >= 2 * (SecureStream::kHeaderBytes + SecureStream::kMostSealed));

// Takes so many bytes off the front of both.
std::pair<std::span<const std::byte>, std::span<const std::byte>> split(std::span<const std::byte>& first,
                                                                        std::span<const std::byte>& rest,
                                                                        std::size_t most) {
  const auto of_first = first.first(std::min(first.size(), most));
  const auto of_rest = rest.first(std::min(rest.size(), most - of_first.size()));
  first = first.subspan(of_first.size());
  rest = rest.subspan(of_rest.size());
  return {of_first, of_rest};
}

}  // namespace

RecordKey::~RecordKey() {
  ::explicit_bzero(key.data(), key.size());
  ::explicit_bzero(nonce.data(), nonce.size());
}

bool SecureStream::advance() {
  flush();
  if (is_open() || ended_) return false;
  try {
    std::optional<RecordCiphers> agreed = handshake_->advance(wire_, unsent_);
    flush();
    ended_ = wire_.ended();
    if (!agreed || ended_) return false;
    ciphers_ = std::move(*agreed);
    handshake_.reset();
    return true;
  } catch (const Handshake::Failure& error) {
    flush();  // the peer may be told why
    fail("failed in the encrypted handshake with", error.what());
    return false;
  }
}

bool SecureStream::flush() {
  if (unsent_.empty()) return true;
  // What a wire takes a part of has no room for the rest: it is not asked again before the next call.
  unsent_.drop(wire_.send(unsent_.bytes()));
  return unsent_.empty();
}

std::size_t SecureStream::send(std::span<const std::byte> first, std::span<const std::byte> rest) {
  if (!is_open()) advance();
  if (!is_open() || ended_ || !flush()) return 0;
  // What was encrypted here has left: what follows may be the wire's to encrypt.
  if (!std::exchange(offered_to_wire_, true)) wire_encrypts_ = offer_key_to_wire();
  if (wire_encrypts_) {
    if (sent_bytes_ >= bytes_per_key_ && !renew_sending_key()) return 0;
    const std::size_t taken = wire_.send_text(first, rest);
    sent_bytes_ += taken;
    return taken;
  }
  const std::size_t total = first.size() + rest.size();
  // As many records as there is room for leave with one call.
  bool has_room = true;
  while (!first.empty() || !rest.empty()) {
    if (sent_bytes_ >= bytes_per_key_ && !renew_sending_key()) break;
    has_room = make_room_for_record();
    if (!has_room) break;
    const auto [of_first, of_rest] = split(first, rest, kMostText);
    seal(of_first, of_rest, kData);
    if (ended_) return 0;
  }
  if (has_room) flush();
  return total - first.size() - rest.size();
}

bool SecureStream::make_room_for_record() { return unsent_.room().size() >= kMostRecord || flush(); }

void SecureStream::seal(std::span<const std::byte> first, std::span<const std::byte> rest, std::byte type) {
  const std::size_t sealed = first.size() + rest.size() + kBehindText;
  std::byte* const out = unsent_.room().data();
  const Header header = header_of(sealed);
  std::memcpy(out, header.data(), header.size());
  if (!ciphers_.sending->seal(sent_records_, header, first, rest, type, out + header.size())) {
    return fail("can be sent nothing encrypted any more by", "the cipher refuses");
  }
  unsent_.add(header.size() + sealed);
  ++sent_records_;
  sent_bytes_ += first.size() + rest.size();
}

bool SecureStream::offer_key_to_wire() {
  const std::optional<RecordKey> key = ciphers_.sending->key();
  return key && wire_.encrypt(*key, sent_records_);
}

// One record for the peer's record layer. False when there is no room for it.
bool SecureStream::say(std::byte type, std::span<const std::byte> text) {
  if (wire_encrypts_) return wire_.send_message(type, text);
  if (!make_room_for_record()) return false;
  seal(text, {}, type);
  return true;
}

bool SecureStream::renew_sending_key() {
  if (!say(kHandshake, kKeyUpdate) || ended_) return false;
  sent_records_ = sent_bytes_ = 0;
  if (ciphers_.sending->renew() && (!wire_encrypts_ || offer_key_to_wire())) return true;
  fail("could get no new key from", "the cipher refuses");
  return false;
}

std::size_t SecureStream::receive(std::span<std::byte> out) {
  if (!is_open()) advance();
  std::size_t taken = 0;
  bool more = true;  // the wire may have more
  while (is_open() && taken < out.size()) {
    if (!text_.empty()) {
      const auto piece = text_.first(std::min(text_.size(), out.size() - taken));
      std::memcpy(out.data() + taken, piece.data(), piece.size());
      taken += piece.size();
      text_ = text_.subspan(piece.size());
      if (text_.empty()) received_.drop(text_record_);
      continue;
    }
    if (ended_) break;
    if (const std::optional<std::size_t> record = next_record()) {
      taken += open_record(*record, out.subspan(taken));
      continue;
    }
    if (ended_ || !more) break;
    const std::span<std::byte> room = received_.room();
    const std::size_t got = wire_.receive(room);
    received_.add(got);
    more = got == room.size();
    if (got == 0) ended_ = wire_.ended();  // what has come before the end was read
  }
  if (!unsent_.empty()) flush();  // an answer to the peer
  return taken;
}

// The bytes of the first record, header included, when it is whole.
std::optional<std::size_t> SecureStream::next_record() {
  const std::span<const std::byte> there = received_.bytes();
  if (there.size() < kHeaderBytes) return std::nullopt;
  const auto sealed = std::to_integer<std::size_t>(there[3]) << 8 | std::to_integer<std::size_t>(there[4]);
  if (there[0] != kData || there[1] != std::byte{3} || sealed > kMostSealed || sealed < kBehindText) {
    fail("sent what does not decrypt to", "it is no encrypted record");
    return std::nullopt;
  }
  if (there.size() < kHeaderBytes + sealed) return std::nullopt;
  return kHeaderBytes + sealed;
}

// Decrypts straight into `out` where that has room for the text, else where the record lies. Returns the bytes given.
std::size_t SecureStream::open_record(std::size_t bytes, std::span<std::byte> out) {
  const std::span<std::byte> record = received_.bytes().first(bytes);
  const std::span<std::byte> sealed = record.subspan(kHeaderBytes);
  std::size_t size = sealed.size() - kBehindText;
  const bool fits = size <= out.size() && size > 0;
  std::byte* const text = fits ? out.data() : sealed.data();
  std::optional<std::byte> type =
      ciphers_.receiving->open(received_records_++, record.first(kHeaderBytes), sealed, text);
  if (!type) {
    fail("sent what does not decrypt to", "a record is not as it was sent");
    return 0;
  }
  // Padding: zeros behind the type.
  while (*type == std::byte{0} && size > 0) type = text[--size];
  if (*type == kData && fits) {
    received_.drop(bytes);
    return size;
  }
  if (*type == kData && size > 0) {
    text_ = {text, size};
    text_record_ = bytes;
    return 0;
  }
  if (*type != kData) understand(*type, {text, size});
  received_.drop(bytes);
  return 0;
}

// What the peer's record layer says to this one.
void SecureStream::understand(std::byte type, std::span<const std::byte> text) {
  if (type == kAlert && text.size() == 2) {
    ended_ = true;
    said_goodbye_ = text[1] == kCloseNotify;
    const std::string number = std::to_string(std::to_integer<int>(text[1]));
    if (!said_goodbye_) fail("could not decrypt what was sent by", "TLS alert " + number);
    return;
  }
  const bool new_key = type == kHandshake && text.size() == kKeyUpdate.size() &&
                       std::equal(text.begin(), text.end() - 1, kKeyUpdate.begin()) && text.back() <= std::byte{1};
  if (!new_key) return fail("sent what does not decrypt to", "a message that nobody asked for");
  const bool asked_back = text.back() == std::byte{1};
  received_records_ = 0;
  if (!ciphers_.receiving->renew()) return fail("could get no new key from", "the cipher refuses");
  if (asked_back) sent_bytes_ = bytes_per_key_;  // what is sent next begins with it
}

std::string SecureStream::Failure::told(Rank self) const {
  return what + " rank " + std::to_string(self) + " (" + why +
         "): something between the two hosts changes what they send";
}

// The peer is told, as far as it can be.
void SecureStream::fail(const char* what, std::string why) {
  if (failure_) return;
  failure_ = Failure{what, std::move(why)};
  ended_ = true;
  constexpr std::array kWords{kFatal, kBadRecordMac};
  if (is_open() && say(kAlert, kWords)) flush();
}

}  // namespace ringcore::transport
