// Messages about the next view.
#include "base/error.hpp"
#include "engine/view.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {

void view_messages(Bytes input) {
  try {
    const engine::ViewMessage message = engine::decode_view_message(input);
    const std::vector<std::byte> again = engine::encode(message);
    require(again.size() == input.size() && std::memcmp(again.data(), input.data(), input.size()) == 0,
            "a message has one form");
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kProtocol, "what cannot be read is an error of the protocol");
  }
}

}  // namespace ringcore::fuzz
