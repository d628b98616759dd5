#include "aggregation/switch.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

namespace ringcore::aggregation {

void Switch::receive(std::span<const std::byte> bytes, const Address& from, Nanoseconds now, Outbox& out) {
  const std::optional<Packet> packet = parse(bytes);
  if (!packet) {
    ++counts_.foreign;
    return;
  }
  const Key key = key_of_session(config_.key, packet->header.session);
  if (!is_authentic(*packet, key)) {
    ++counts_.forged;
    return;
  }
  ++counts_.packets;
  if (Session* const session = find(*packet)) {
    session->receive(*packet, from, now, out);
    if (session->ended()) sessions_.erase(packet->header.session);
    return;
  }
  ++counts_.refused;
  const Header& told = packet->header;
  if (told.has(flags::kFromSwitch)) return;
  const bool joins = told.action == Action::kJoin;
  if (!joins && told.generation == 0) return;
  const Answer answer = joins ? Answer::kFull : Answer::kUnknown;
  const Header refusal{.action = Action::kAck,
                       .flags = flags::kFromSwitch,
                       .member = told.member,
                       .value = static_cast<std::uint32_t>(answer),
                       .session = told.session,
                       .segment = told.generation};
  if (told.action != Action::kLeave) out.send(refusal, {}, key, from);
}

// Only a Join begins a session.
Session* Switch::find(const Packet& packet) {
  const std::uint64_t id = packet.header.session;
  if (const auto known = sessions_.find(id); known != sessions_.end()) return &known->second;
  if (packet.header.action != Action::kJoin || packet.header.has(flags::kFromSwitch)) return nullptr;
  if (sessions_.size() >= config_.most_sessions && !make_room()) return nullptr;
  return &sessions_
              .try_emplace(id, SessionConfig{.id = id,
                                             .key = key_of_session(config_.key, id),
                                             .members = config_.members,
                                             .parent = config_.parent,
                                             .own_id = config_.own_id,
                                             .silence = config_.silence,
                                             .next_generation =
                                                 [this] {
                                                   // 0 is none.
                                                   if (++generation_ == 0) ++generation_;
                                                   return generation_;
                                                 }})
              .first->second;
}

// The one that has not begun and was silent for longest makes way: somebody may repeat old Joins.
bool Switch::make_room() {
  const auto least = std::ranges::min_element(
      sessions_, {}, [](const auto& each) { return std::pair(each.second.is_ready(), each.second.heard_at()); });
  if (least == sessions_.end() || least->second.is_ready()) return false;
  sessions_.erase(least);
  return true;
}

void Switch::check_timers(Nanoseconds now, Outbox& out) {
  for (auto each = sessions_.begin(); each != sessions_.end();) {
    Session& session = each->second;
    session.check_timers(now, out);
    const bool silent = now - session.heard_at() > config_.idle;
    if (silent) session.leave(out);
    each = silent || session.ended() ? sessions_.erase(each) : std::next(each);
  }
}

Nanoseconds Switch::next_timer() const {
  Nanoseconds next = std::numeric_limits<Nanoseconds>::max();
  for (const auto& [id, session] : sessions_) {
    next = std::min({next, session.next_timer(), session.heard_at() + config_.idle + 1});
  }
  return next;
}

void Switch::leave(Outbox& out) {
  for (auto& [id, session] : sessions_) session.leave(out);
}

std::size_t Switch::held_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [id, session] : sessions_) bytes += session.held_bytes();
  return bytes;
}

}  // namespace ringcore::aggregation
