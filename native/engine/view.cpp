#include "engine/view.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>

#include "base/error.hpp"

namespace ringcore::engine {
namespace {

enum Flags : std::uint8_t { kLeaves = 1, kWithWitness = 2, kHasProposal = 4, kYields = 8, kPlansOnly = 16 };
enum UnderWayFlags : std::uint8_t { kRepeats = 1, kCounted = 2 };  // kRepeats: and counted

template <typename Number>
void put(std::vector<std::byte>& out, Number number) {
  const std::size_t at = out.size();
  out.resize(at + sizeof(number));
  std::memcpy(out.data() + at, &number, sizeof(number));
}

void put(std::vector<std::byte>& out, const Places& places) {
  put(out, static_cast<std::uint32_t>(places.size()));
  for (const Place place : places) put(out, place);
}

void put(std::vector<std::byte>& out, const UnderWay& under_way) {
  put(out, static_cast<std::uint8_t>(under_way.repeats ? kRepeats : under_way.counted ? kCounted : 0));
  for (const auto* numbers : {&under_way.released, &under_way.unfinished}) {
    put(out, static_cast<std::uint32_t>(numbers->size()));
    for (const auto& [set, number] : *numbers) {
      put(out, set);
      put(out, number);
    }
  }
}

void put(std::vector<std::byte>& out, const View& view) {
  put(out, view.epoch);
  put(out, view.committed);
  put(out, view.members);
  put(out, view.under_way);
  put(out, static_cast<std::uint8_t>(view.plans_only));
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename Number>
  Number number() {
    if (bytes_.size() < sizeof(Number)) refuse("it ends too early");
    Number number;
    std::memcpy(&number, bytes_.data(), sizeof(number));
    bytes_ = bytes_.subspan(sizeof(number));
    return number;
  }

  Places places() {
    const auto count = number<std::uint32_t>();
    if (count > bytes_.size() / sizeof(Place)) refuse("it names more places than it has");
    Places places(count);
    for (Place& place : places) {
      place = number<Place>();
      if (place < 0 || place >= kMaxPlaces) refuse("place " + std::to_string(place) + " does not exist");
    }
    if (std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()) != places.end()) {
      refuse("its places are not in ascending order");
    }
    return places;
  }

  // Epochs are ballots, too.
  std::uint32_t ballot() {
    const auto ballot = number<std::uint32_t>();
    if (ballot > kMaxBallot) refuse("no ballot comes after " + std::to_string(ballot));
    return ballot;
  }

  View view() {
    View view;
    view.epoch = ballot();
    view.committed = number<std::uint64_t>();
    view.members = places();
    view.under_way = under_way();
    const auto plans_only = number<std::uint8_t>();
    if (plans_only > 1) refuse("it neither goes on with plans alone nor not");
    view.plans_only = plans_only != 0;
    return view;
  }

  UnderWay under_way() {
    UnderWay under_way;
    const auto what = number<std::uint8_t>();
    if (what > kCounted) refuse("it can neither be repeated nor not");
    under_way.repeats = what == kRepeats;
    under_way.counted = what != 0;
    under_way.released = numbers();
    under_way.unfinished = numbers();
    return under_way;
  }

  // Of operations, or how many there are.
  std::vector<UnderWay::Numbered> numbers() {
    std::vector<UnderWay::Numbered> numbers;
    const auto count = number<std::uint32_t>();
    if (count > bytes_.size() / (sizeof(std::uint16_t) + sizeof(std::uint64_t)))
      refuse("it numbers more operations than it has");
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto set = number<std::uint16_t>();
      numbers.emplace_back(set, number<std::uint64_t>());
    }
    if (std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) != numbers.end()) {
      refuse("its operations are not in ascending order");
    }
    return numbers;
  }

  void end() const {
    if (!bytes_.empty()) refuse("it goes on behind its end");
  }

  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(ErrorKind::kProtocol, "a message about the next view is malformed: " + what);
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

bool contains(const Places& places, Place place) { return std::binary_search(places.begin(), places.end(), place); }

void insert(Places& places, Place place) {
  const auto at = std::lower_bound(places.begin(), places.end(), place);
  if (at == places.end() || *at != place) places.insert(at, place);
}

std::size_t common(const Places& places, const Places& others) {
  return static_cast<std::size_t>(
      std::count_if(places.begin(), places.end(), [&](Place place) { return contains(others, place); }));
}

std::uint64_t UnderWay::released_in(std::uint16_t set) const {
  const auto found = std::lower_bound(released.begin(), released.end(), Numbered(set, 0));
  return found != released.end() && found->first == set ? found->second : 0;
}

bool UnderWay::is_finished(const Numbered& operation) const {
  return counted && operation.second < released_in(operation.first) &&
         !std::binary_search(unfinished.begin(), unfinished.end(), operation);
}

void UnderWay::add(const UnderWay& other) {
  std::vector<Numbered> all;
  std::set_union(unfinished.begin(), unfinished.end(), other.unfinished.begin(), other.unfinished.end(),
                 std::back_inserter(all));
  counted = counted && other.counted && all.size() <= kMaxUnderWay;
  repeats = repeats && other.repeats && counted;
  unfinished = counted ? std::move(all) : std::vector<Numbered>();
  all.clear();
  std::merge(released.begin(), released.end(), other.released.begin(), other.released.end(), std::back_inserter(all));
  // Of two of a set the lower one comes first.
  const auto of_one_set = [](const Numbered& one, const Numbered& next) { return one.first == next.first; };
  all.erase(std::unique(all.begin(), all.end(), of_one_set), all.end());
  released = std::move(all);
}

std::vector<std::byte> encode(const ViewMessage& message) {
  std::vector<std::byte> out;
  put(out, static_cast<std::uint8_t>(message.type));
  put(out, static_cast<std::uint8_t>((message.leaves ? kLeaves : 0) | (message.yields ? kYields : 0) |
                                     (message.with_witness ? kWithWitness : 0) | (message.proposal ? kHasProposal : 0) |
                                     (message.plans_only ? kPlansOnly : 0)));
  put(out, message.epoch);
  put(out, message.ballot);
  put(out, message.answered);
  put(out, message.committed);
  put(out, message.suspects);
  put(out, message.ended);
  put(out, message.arriving);
  put(out, message.under_way);
  put(out, static_cast<std::uint32_t>(message.since.size()));
  for (const View& view : message.since) put(out, view);
  if (!message.proposal) return out;
  put(out, message.proposal->ballot);
  put(out, message.proposal->view);
  return out;
}

ViewMessage decode_view_message(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  ViewMessage message;
  const auto type = reader.number<std::uint8_t>();
  if (type > static_cast<std::uint8_t>(ViewMessage::Type::kKnown)) Reader::refuse("it is of no known type");
  message.type = static_cast<ViewMessage::Type>(type);
  const auto flags = reader.number<std::uint8_t>();
  if ((flags & ~(kLeaves | kWithWitness | kHasProposal | kYields | kPlansOnly)) != 0)
    Reader::refuse("it has flags that do not exist");
  message.leaves = (flags & kLeaves) != 0;
  message.yields = (flags & kYields) != 0;
  message.with_witness = (flags & kWithWitness) != 0;
  message.plans_only = (flags & kPlansOnly) != 0;
  message.epoch = reader.ballot();
  message.ballot = reader.ballot();
  message.answered = reader.ballot();
  message.committed = reader.number<std::uint64_t>();
  message.suspects = reader.places();
  message.ended = reader.places();
  message.arriving = reader.places();
  message.under_way = reader.under_way();
  for (auto views = reader.number<std::uint32_t>(); views > 0; --views) message.since.push_back(reader.view());
  if ((flags & kHasProposal) != 0) {
    const auto ballot = reader.ballot();
    message.proposal = Proposal{ballot, reader.view()};
  }
  reader.end();
  using Type = ViewMessage::Type;
  const bool proposes = message.type == Type::kPropose || message.type == Type::kInstall;
  if (proposes && !message.proposal) Reader::refuse("it proposes nothing");
  // Who tells the newest view that it knows has left none for it.
  const bool installs = message.type == Type::kInstall;
  const std::uint32_t proposed = message.proposal ? message.proposal->view.epoch : 0;
  const bool follows = installs ? proposed >= message.epoch : proposed > message.epoch;
  if (message.proposal && !follows) Reader::refuse("the view that it proposes does not follow the one that is left");
  // What follows is decided among the members of all of them: among nobody, anything would be.
  const auto ends_with = [&message](const View& view) {
    const View& last = message.since.back();
    return last.epoch == view.epoch && last.members == view.members && last.committed == view.committed;
  };
  if (installs && (message.since.empty() || !ends_with(message.proposal->view))) {
    Reader::refuse("the views since the last that the witness knows do not end with this one");
  }
  return message;
}

bool Acceptor::promise(std::uint32_t ballot) {
  if (ballot <= promised_) return false;
  promised_ = ballot;
  return true;
}

bool Acceptor::accept(const Proposal& proposal) {
  if (proposal.ballot < promised_) return false;
  promised_ = proposal.ballot;
  accepted_ = proposal;
  return true;
}

void Acceptor::begin_after(std::uint32_t epoch) {
  promised_ = std::max(promised_, epoch);
  accepted_.reset();
}

}  // namespace ringcore::engine
