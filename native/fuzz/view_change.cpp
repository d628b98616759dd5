// A member that agrees on the next view with others who say anything, and the witness beside it.
#include "engine/view_change.hpp"

#include "base/error.hpp"
#include "fuzz/target.hpp"

namespace ringcore::fuzz {
namespace {

using engine::Place;
using engine::Places;
using engine::View;
using engine::ViewMessage;

constexpr Place kSelf = 1;
constexpr Place kPlaces = 6;

Places some_places(Input& bytes) {
  Places places;
  const auto mask = bytes.take<std::uint8_t>();
  for (Place place = 0; place < kPlaces; ++place) {
    if ((mask >> place & 1) != 0) places.push_back(place);
  }
  return places;
}

// Small, so that it often fits, and now and then as large as can be.
std::uint32_t some_number(Input& bytes) {
  const auto number = bytes.take<std::uint8_t>();
  if (number >= 0xf0) return 0xffffffff - (number - 0xf0);
  return number < 0x80 ? number : (number - 0x80U) / 4 * engine::kMaxPlaces + number % 4;
}

View some_view(Input& bytes) {
  return {.epoch = some_number(bytes), .members = some_places(bytes), .committed = bytes.take<std::uint8_t>()};
}

ViewMessage some_message(Input& bytes) {
  ViewMessage message;
  message.type = static_cast<ViewMessage::Type>(bytes.below(8));
  const auto flags = bytes.take<std::uint8_t>();
  message.leaves = (flags & 1) != 0;
  message.yields = (flags & 2) != 0;
  message.with_witness = (flags & 4) != 0;
  message.plans_only = (flags & 16) != 0;
  message.epoch = some_number(bytes);
  message.ballot = some_number(bytes);
  message.answered = some_number(bytes);
  message.suspects = some_places(bytes);
  message.ended = some_places(bytes);
  message.arriving = some_places(bytes);
  if ((flags & 8) != 0) message.proposal = {some_number(bytes), some_view(bytes)};
  if (message.proposal) message.proposal->view.plans_only = (flags & 32) != 0;
  for (std::size_t views = flags >> 6; views > 0; --views) message.since.push_back(some_view(bytes));
  return message;
}

// The way that all messages of other processes come.
std::optional<ViewMessage> arrived(Input& bytes) {
  try {
    return engine::decode_view_message(engine::encode(some_message(bytes)));
  } catch (const Error&) {
    return {};
  }
}

void act(engine::ViewChange& change, engine::Witness& witness, Input& bytes, Nanoseconds& now) {
  const auto place = static_cast<Place>(bytes.below(kPlaces));
  switch (bytes.below(9)) {
    case 0: return change.suspect(place);
    case 1: return change.prove_ended(place == kSelf ? 0 : place);
    case 2: return change.lose_witness();
    case 3: return change.arrive(place);
    case 4: return change.leave();
    case 5: {
      const auto step = bytes.take<std::uint8_t>();
      return step == 0xff ? change.give_up_backends() : change.commit(step);
    }
    case 6: return change.check_timers(now += bytes.take<std::uint8_t>());
    case 7:
      if (const auto message = arrived(bytes)) witness.receive(*message);
      return;
    default:
      if (const auto message = arrived(bytes)) change.receive(bytes.below(4) == 0 ? engine::kWitness : place, *message);
  }
}

}  // namespace

void view_change(Bytes input) {
  Input bytes(input);
  const bool has_witness = bytes.flip();
  const View first{.epoch = 1, .members = {0, 1, 2, 3}};
  engine::ViewChange change(first, kSelf, has_witness, 10);
  engine::Witness witness(first);
  Nanoseconds now = 0;
  for (int events = 0; events < 200 && !bytes.empty(); ++events) {
    const std::uint32_t before = change.view().epoch;
    act(change, witness, bytes, now);
    require(change.view().epoch >= before, "no member goes back to an older view");
    for (const auto& [to, message] : change.take_outbox()) {
      const bool readable = engine::decode_view_message(engine::encode(message)).epoch == message.epoch;
      require(readable && to != kSelf && to < engine::kMaxPlaces, "what a member says can be sent and read");
    }
  }
}

}  // namespace ringcore::fuzz
