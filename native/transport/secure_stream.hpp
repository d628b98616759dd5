// An encrypted stream of bytes: the record layer of TLS 1.3 (RFC 8446, section 5), over any wire, with any cipher.
//
// The state machine is one: TCP runs it with OpenSSL's handshake and ciphers (tcp/tls.hpp), the simulated network with
// toys, so that fault schedules meet short reads, new keys, ends in the middle of a record and changed bytes in the code
// that runs between hosts. OpenSSL's own record layer copies what it encrypts and what it decrypts, and asks the kernel
// for each record; here many records leave and come with one call, and what is decrypted goes to where it is wanted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/types.hpp"
#include "transport/buffer.hpp"

namespace ringcore::transport {

// The key of one direction in the ciphers of TLS, wiped in the end.
struct RecordKey {
  enum class Suite : std::uint8_t { kAes128Gcm, kChaCha20Poly1305 };
  Suite suite = Suite::kAes128Gcm;
  std::array<std::byte, 32> key{};  // of AES-128-GCM the first 16
  std::array<std::byte, 12> nonce{};  // of record 0 (RFC 8446, section 5.3)

  RecordKey() = default;
  RecordKey(const RecordKey&) = default;
  RecordKey& operator=(const RecordKey&) = default;
  ~RecordKey();
};

// What records travel over. Never blocks.
class Wire {
 public:
  virtual ~Wire() = default;
  // Each returns how many bytes were taken, or have come.
  virtual std::size_t send(std::span<const std::byte> bytes) = 0;
  virtual std::size_t receive(std::span<std::byte> room) = 0;
  // Nothing more can be received.
  virtual bool ended() const = 0;

  // A wire may encrypt by itself: from now on, with this key, and as the records from `number` on; asked again, with the
  // next key. False where it does not.
  virtual bool encrypt([[maybe_unused]] const RecordKey& key, [[maybe_unused]] std::uint64_t number) { return false; }
  // To a wire that encrypts: text, of which it takes what it has room for, and a record of another type, whole or not.
  virtual std::size_t send_text([[maybe_unused]] std::span<const std::byte> first,
                                [[maybe_unused]] std::span<const std::byte> rest) {
    return 0;
  }
  virtual bool send_message([[maybe_unused]] std::byte type, [[maybe_unused]] std::span<const std::byte> text) {
    return false;
  }
};

// The key of one direction.
class RecordCipher {
 public:
  virtual ~RecordCipher() = default;
  static constexpr std::size_t kTagBytes = 16;

  // Encrypts `first`, `rest` and the byte `type`, one behind the other, and puts a tag behind them, all into `out`, which
  // has room. `number`: of the record under this key. `header`: what the tag covers besides.
  virtual bool seal(std::uint64_t number, std::span<const std::byte> header, std::span<const std::byte> first,
                    std::span<const std::byte> rest, std::byte type, std::byte* out) = 0;
  // Decrypts what `seal` has made, all but its last byte into `text`, which may be where it lies; nullopt where it is
  // not what the peer has sent as this record. Returns the last byte.
  virtual std::optional<std::byte> open(std::uint64_t number, std::span<const std::byte> header,
                                        std::span<const std::byte> sealed, std::byte* text) = 0;
  // The key gives way to the one that follows from it.
  virtual bool renew() = 0;
  // For a wire that encrypts by itself; none where the cipher is not one of TLS.
  virtual std::optional<RecordKey> key() const { return std::nullopt; }
};

struct RecordCiphers {
  std::unique_ptr<RecordCipher> sending;
  std::unique_ptr<RecordCipher> receiving;
};

// How two ends agree on their keys.
class Handshake {
 public:
  virtual ~Handshake() = default;
  struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  // Reads from the wire no byte that is not its own, and adds to `unsent` what is to be sent. The ciphers, when it has
  // ended; throws Failure with the reason where it cannot.
  virtual std::optional<RecordCiphers> advance(Wire& wire, Buffer& unsent) = 0;
};

// Never blocks. The handshake goes on with every call; until it is over nothing is taken and nothing given.
class SecureStream {
 public:
  // `wire` outlives this.
  SecureStream(Wire& wire, std::unique_ptr<Handshake> handshake) : wire_(wire), handshake_(std::move(handshake)) {}

  // Sends from the front of `first`, then of `rest`; returns how many bytes of both were taken. What was taken is
  // encrypted at once; what the wire has no room for is kept and leaves with `advance`.
  std::size_t send(std::span<const std::byte> first, std::span<const std::byte> rest);
  std::size_t receive(std::span<std::byte> out);

  // Goes on with the handshake and with what is unsent; true when the handshake has just ended.
  bool advance();
  // False when the wire has no room for the rest.
  bool flush();
  bool is_open() const { return ciphers_.sending != nullptr; }
  bool has_unsent() const { return !unsent_.empty(); }
  // Bytes that have been received and show nothing yet, or did not fit where they were wanted.
  std::size_t hidden() const { return received_.size(); }
  // Nothing more can be received: the wire has ended, or there is a `failure`, or the peer `said_goodbye`.
  bool ended() const { return ended_; }
  bool said_goodbye() const { return said_goodbye_; }
  // What the peer does wrong: "sent what does not decrypt to", to be followed by this rank, and the reason.
  struct Failure {
    std::string what;
    std::string why;
    // For who is to hear it: what the peer has done to `self`.
    std::string told(Rank self) const;
  };
  const std::optional<Failure>& failure() const { return failure_; }
  // Since the first `send` after the handshake, where the wire does it by itself.
  bool wire_encrypts() const { return wire_encrypts_; }

  // A key encrypts no more than this. AES-GCM may have 2^24.5 records of 16 KiB (RFC 8446, section 5.5): a third of it.
  static constexpr std::uint64_t kBytesPerKey = std::uint64_t{128} << 30;
  // For tests.
  void limit_bytes_per_key(std::uint64_t bytes) { bytes_per_key_ = bytes; }

  static constexpr std::size_t kHeaderBytes = 5;
  static constexpr std::size_t kMostText = 16 * 1024;
  // Behind the text: its type, and the tag.
  static constexpr std::size_t kBehindText = 1 + RecordCipher::kTagBytes;
  // A peer may pad what it sends.
  static constexpr std::size_t kMostSealed = kMostText + 256;

 private:
  void seal(std::span<const std::byte> first, std::span<const std::byte> rest, std::byte type);
  bool make_room_for_record();
  bool offer_key_to_wire();
  bool say(std::byte type, std::span<const std::byte> text);
  bool renew_sending_key();
  std::optional<std::size_t> next_record();
  std::size_t open_record(std::size_t bytes, std::span<std::byte> out);
  void understand(std::byte type, std::span<const std::byte> text);
  void fail(const char* what, std::string why);

  Wire& wire_;
  std::unique_ptr<Handshake> handshake_;  // null when it has ended
  RecordCiphers ciphers_;
  Buffer unsent_;  // encrypted
  Buffer received_;
  std::span<const std::byte> text_;  // decrypted, not given yet: part of the first record of `received_`
  std::size_t text_record_ = 0;  // bytes of that record
  std::uint64_t sent_records_ = 0;  // with this key
  std::uint64_t sent_bytes_ = 0;  // with this key
  std::uint64_t received_records_ = 0;  // with this key
  std::uint64_t bytes_per_key_ = kBytesPerKey;
  bool offered_to_wire_ = false;
  bool wire_encrypts_ = false;
  bool ended_ = false;
  bool said_goodbye_ = false;
  std::optional<Failure> failure_;
};

}  // namespace ringcore::transport
