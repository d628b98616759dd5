// Messages over MPI: of any size that fits, done at any time or never, and calls that fail.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "fuzz/messages_only.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

using transport::MpiComm;
using transport::MpiRequest;

// What the shim would say of a peer that sends what `input` has.
class MadLibrary final : public MessagesOnly {
 public:
  void drive(Input* input) { input_ = input; }
  // From now on everything ends, so that nothing is left with MPI.
  void settle() { input_ = nullptr; }

  MpiRequest send(MpiComm, int, int, Bytes, bool) override { return begin({}); }
  MpiRequest receive(MpiComm, int, int, std::span<std::byte> room) override { return begin(room); }
  std::optional<std::size_t> test(MpiRequest& request) override {
    const auto found = requests_.find(request);
    require(found != requests_.end(), "a request that is done is not asked for again");
    if (input_ != nullptr && (input_->empty() || input_->below(3) == 0)) return {};
    if (input_ != nullptr && input_->below(64) == 0) throw std::runtime_error("MPI_Test: the process has failed");
    const std::span<std::byte> room = found->second;
    requests_.erase(found);
    if (input_ == nullptr) return 0;
    const Bytes sent = input_->piece(std::min<std::size_t>(room.size(), input_->take<std::uint16_t>()));
    std::copy(sent.begin(), sent.end(), room.begin());
    return sent.size();
  }
  void cancel(MpiRequest&) override {}

  int rank(MpiComm) override { return 0; }
  MpiComm duplicate(MpiComm, const std::function<void()>&) override { return 1; }

 private:
  MpiRequest begin(std::span<std::byte> room) {
    requests_[++last_] = room;
    return last_;
  }

  Input* input_ = nullptr;
  std::map<MpiRequest, std::span<std::byte>> requests_;
  MpiRequest last_ = 0;
};

void act(transport::Link& link, std::vector<transport::Link::Message>& messages, Input& bytes) {
  static std::array<std::byte, 70'000> memory{};
  const int lane = static_cast<int>(bytes.below(transport::kLaneCount));
  switch (bytes.below(8)) {
    case 0:
    case 1: {
      const Bytes seen = link.peek(lane);
      std::copy_n(seen.begin(), std::min(seen.size(), memory.size()), memory.begin());
      link.consume(lane, std::min<std::size_t>(seen.size(), bytes.take<std::uint16_t>()));
      break;
    }
    case 2: {
      const std::size_t wanted = bytes.take<std::uint16_t>();
      require(link.read(lane, std::span(memory).first(wanted)) <= wanted, "no more is read than was asked for");
      break;
    }
    case 3: {
      const std::size_t size = bytes.take<std::uint16_t>();
      require(link.write(lane, std::span(memory).first(size)) <= size, "no more is taken than was given");
      break;
    }
    case 4: link.arm(); break;
    case 5: {
      const auto room = std::span(memory).first(bytes.take<std::uint16_t>());
      const int channel = static_cast<int>(bytes.below(4));
      messages.push_back(bytes.flip() ? link.send_message(lane, channel, room)
                                      : link.receive_message(lane, channel, room));
      break;
    }
    case 6:
      // Says so once.
      std::erase_if(messages, [&](const auto message) { return link.message_done(message); });
      break;
    default:
      link.blocked();
      link.check();
      break;
  }
}

}  // namespace

void mpi(Bytes input) {
  Input bytes(input);
  MadLibrary library;
  library.drive(&bytes);
  {
    const auto link = transport::make_mpi_link(std::make_shared<transport::MpiWorld>(library, 0, kSecond), 1);
    std::vector<transport::Link::Message> messages;
    for (int calls = 0; calls < 300 && !bytes.empty(); ++calls) act(*link, messages, bytes);
    library.settle();
  }
}

}  // namespace ringcore::fuzz
