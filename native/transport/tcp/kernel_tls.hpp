// TLS by the kernel (Linux, net/tls): what a socket is sent leaves as encrypted records, without a copy in between.
//
// Only sending is given to it. It decrypts one record with each wake-up and is told nothing of how much a reader waits
// for (SO_RCVLOWAT), where secure_stream decrypts many at once to where they are wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/secure_stream.hpp"

namespace ringcore::transport::kernel_tls {

// Whether connections ask for it; they do not before this is called.
void use(bool wanted);
bool is_used();

// Why the kernel cannot be used; empty where it can. It is asked once, over loopback, for all that a connection needs:
// that a key can give way to the next one, too, which no kernel before Linux 6.14 does.
const std::string& refusal();

// `fd` encrypts what it is sent from now on, as the records from `number` on; called again, with the next key. False
// where it does not: then it is as it was.
bool encrypt(int fd, const RecordKey& key, std::uint64_t number);

// Sends a record that is no data, whole or, where there is no room for it, not at all. Returns what `sendmsg` does.
std::ptrdiff_t send_message(int fd, std::byte type, std::span<const std::byte> text);

}  // namespace ringcore::transport::kernel_tls
