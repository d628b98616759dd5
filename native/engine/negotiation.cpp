#include "engine/negotiation.hpp"

#include <algorithm>
#include <utility>

namespace ringcore::engine {
namespace {

// More data than this that has come along with announcements, and waits for others to announce the same, is an error.
constexpr std::size_t kMaxHeldBytes = std::size_t{64} << 20;

// Whether the member says something that others may wait for.
bool announces(const Entry& entry) {
  return entry.type == RecordType::kOperation || entry.type == RecordType::kRefused || entry.type == RecordType::kJoin;
}

}  // namespace

void Release::spread(std::size_t members) {
  if (!contributions.empty()) return;
  contributions.assign(members, alike);
}

bool Release::all_have(std::uint8_t flag) const {
  if (contributions.empty()) return (alike.flags & flag) != 0;
  return std::all_of(contributions.begin(), contributions.end(),
                     [flag](const Contribution& c) { return c.present && (c.flags & flag) != 0; });
}

bool Release::any_has(std::uint8_t flag) const {
  if (contributions.empty()) return (alike.flags & flag) != 0;
  return std::any_of(contributions.begin(), contributions.end(),
                     [flag](const Contribution& c) { return c.present && (c.flags & flag) != 0; });
}

bool Release::all_registered() const {
  if (contributions.empty()) return alike.location != 0;
  return std::all_of(contributions.begin(), contributions.end(),
                     [](const Contribution& c) { return c.present && c.location != 0; });
}

bool Release::all_inputs_registered() const {
  if (contributions.empty()) return alike.input_location() != 0;
  return std::all_of(contributions.begin(), contributions.end(),
                     [](const Contribution& c) { return c.present && c.input_location() != 0; });
}

std::vector<int> Release::absent() const {
  std::vector<int> members;
  for (std::size_t m = 0; m < contributions.size(); ++m) {
    if (!contributions[m].present) members.push_back(static_cast<int>(m));
  }
  return members;
}

Negotiation::Negotiation(std::vector<Rank> members, int self)
    : members_(std::move(members)), self_(self), left_(members_.size(), false), joined_(members_.size(), false) {
  if (is_member()) return;
  logs_.resize(members_.size());  // there is none of its own that the others could be like
  blocked_on_.assign(members_.size(), 0);
}

void Negotiation::append(int member, Entry entry) {
  note_fill(member, entry);
  count(member, entry);
  if (is_together() && member == self_) return own_.entries.push_back(std::move(entry));
  spread();
  if (entry.type == RecordType::kOperation && !entry.payload.empty()) hold(entry);
  logs_[member].entries.push_back(std::move(entry));
}

void Negotiation::append_alike(const Entry& entry) {
  note_fill(self_, entry);
  if (announces(entry)) ++alike_said_;
  gather(entry);
  if (is_together() && !comes_next(own_, alike_, entry)) spread();
  if (is_together()) {
    own_.entries[alike_++].sum = entry.sum;
    return;
  }
  for (Entry& own : logs_[self_].entries) {
    if (entry.sum != nullptr && own.position == entry.position) own.sum = entry.sum;
  }
  for (int m = 0; m < static_cast<int>(members_.size()); ++m) {
    if (m != self_) logs_[m].entries.push_back(entry);
  }
}

// A rank that has gone mad may claim any position: no log is filled beyond the place that one has come to.
void Negotiation::note_fill(int member, const Entry& entry) {
  if ((entry.flags & kFill) == 0 || !is_member()) return;
  const std::uint64_t furthest = std::max(length(member), length(self_));
  fill_until_ = std::max(fill_until_, std::min(entry.position, furthest) + 1);
}

// From here on there is a log for each member.
void Negotiation::spread() {
  if (!is_together()) return;
  logs_.resize(members_.size());
  blocked_on_.assign(members_.size(), blocked_alike_);
  for (Log& log : logs_) {
    log.first = round_;
    log.entries.assign(own_.entries.begin(), own_.entries.begin() + static_cast<std::ptrdiff_t>(alike_));
  }
  logs_[self_].entries = std::exchange(own_.entries, {});
  alike_ = 0;
}

// Whether this rank's entry that all say alike is the one at this place of its log. Who announces behind its join has
// other rounds than its log's positions say: there an earlier one may be undecided, or this one decided.
bool Negotiation::comes_next(const Log& own, std::size_t place, const Entry& entry) {
  return place < own.entries.size() && own.entries[place].position == entry.position;
}

// All others' logs are empty: they are one again, if nothing else is known of any of them, and all say `next` in the same
// round.
void Negotiation::gather(const Entry& next) {
  if (is_together() || !pending_.empty() || joined_count_ > 0 || !comes_next(logs_[self_], 0, next)) return;
  for (int m = 0; m < static_cast<int>(members_.size()); ++m) {
    if (left_[m] || (m != self_ && !logs_[m].entries.empty())) return;
  }
  own_.entries = std::move(logs_[self_].entries);
  blocked_alike_ = 0;  // an entry of each member is what changes that
  logs_ = {};
  blocked_on_ = {};
}

std::uint64_t Negotiation::length(int member) const {
  if (!is_together()) return logs_[member].end();
  return round_ + (member == self_ ? own_.entries.size() : alike_);
}

void Negotiation::leave(int member) {
  spread();
  left_[member] = true;
}

void Negotiation::count(int member, const Entry& entry) {
  if (!announces(entry)) return;
  if (member == self_) {
    ++own_said_;
    return;
  }
  said_.resize(members_.size());
  ++said_[member];
}

std::uint64_t Negotiation::seen() const {
  std::vector<std::uint64_t> seen(members_.size(), alike_said_);
  for (std::size_t m = 0; m < said_.size(); ++m) seen[m] += said_[m];
  seen[self_] = own_said_;
  return hash_bytes({reinterpret_cast<const char*>(seen.data()), seen.size() * sizeof(seen[0])});
}

bool Negotiation::settled() const {
  const auto decided = [this](int member) {
    return joined_[member] || !has_undecided(member, [](const Entry& entry) {
             return entry.type != RecordType::kNoop && entry.type != RecordType::kStandstill;
           });
  };
  if (is_together()) return decided(self_) && decided(self_ == 0 ? static_cast<int>(members_.size()) - 1 : 0);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (!decided(static_cast<int>(m))) return false;
  }
  return true;
}

// Who waits for a small operation submits nothing else: only many threads at once have much under way.
void Negotiation::hold(const Entry& entry) {
  held_bytes_ += entry.payload.size();
  if (held_bytes_ <= kMaxHeldBytes) return;
  throw Error(ErrorKind::kProtocol, "sent data for " + title(*entry.descriptor) + ", and what came along with " +
                                        "announcements that wait for other ranks is now " +
                                        std::to_string(held_bytes_) + " bytes, more than " +
                                        std::to_string(kMaxHeldBytes) +
                                        ". Remedy: wait for blocking calls in fewer threads at once.");
}

// Of an operation that is decided: its data is somebody else's now.
void Negotiation::let_go(const std::vector<Contribution>& contributions) {
  if (held_bytes_ == 0) return;
  for (const Contribution& contribution : contributions) held_bytes_ -= contribution.payload.size();
}

bool Negotiation::quiet() const {
  if (is_together()) return own_.entries.empty();
  if (!pending_.empty() || joined_count_ > 0) return false;
  return std::all_of(logs_.begin(), logs_.end(),
                     [this](const Log& log) { return log.entries.empty() && log.first == round_; });
}

void Negotiation::skip_round() {
  ++round_;
  ++own_said_;
  ++alike_said_;
  for (Log& log : logs_) log.first = round_;
}

std::uint64_t Negotiation::longest() const {
  if (is_together()) return length(self_);
  std::uint64_t longest = 0;
  for (const Log& log : logs_) longest = std::max(longest, log.end());
  return longest;
}

std::vector<Rank> Negotiation::behind() const {
  std::vector<Rank> ranks;
  if (fill_until_ <= round_) return ranks;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const bool has_said = length(static_cast<int>(m)) > round_;
    if (!joined_[m] && !left_[m] && !has_said) ranks.push_back(members_[m]);
  }
  return ranks;
}

// Whether an undecided entry of the member is one of these.
template <class Test>
bool Negotiation::has_undecided(int member, Test test) const {
  const Log& log = is_together() ? own_ : logs_[member];
  const auto known = is_together() && member != self_ ? static_cast<std::ptrdiff_t>(alike_)
                                                      : static_cast<std::ptrdiff_t>(log.entries.size());
  return std::any_of(log.entries.begin(), log.entries.begin() + known, test);
}

bool Negotiation::announced_join(int member) const {
  return joined_[member] || has_undecided(member, [](const Entry& entry) { return entry.type == RecordType::kJoin; });
}

std::vector<Rank> Negotiation::not_joining() const {
  std::vector<Rank> ranks;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (!announced_join(static_cast<int>(m))) ranks.push_back(members_[m]);
  }
  return ranks;
}

bool Negotiation::may_announce_at(int member, std::uint64_t position) {
  const std::uint64_t expected = length(member);
  if (position == expected || announced_join(member)) return true;
  if (sat_out_.empty() || position > expected || expected - position > sat_out_[member]) return false;
  sat_out_[member] = expected - position;  // it cannot know less later than it knew here
  return true;
}

bool Negotiation::announced_by_all(std::uint64_t name_hash) const {
  if (!is_together()) return missing(name_hash).empty();
  const int other = self_ == 0 ? static_cast<int>(members_.size()) - 1 : 0;
  return !is_missing(self_, name_hash) && !is_missing(other, name_hash);
}

std::vector<Rank> Negotiation::present(std::uint64_t name_hash) const {
  std::vector<Rank> ranks;
  const std::vector<Rank> absent = missing(name_hash);
  std::set_difference(members_.begin(), members_.end(), absent.begin(), absent.end(), std::back_inserter(ranks));
  return ranks;
}

// The use of the name that this rank has announced, or, as long as that announcement is not decided, the one that it
// will be part of.
const Negotiation::Pending* Negotiation::own_use(std::uint64_t name_hash) const {
  if (const Pending* pending = alive(name_hash, self_)) return pending;
  const auto found = pending_.find(name_hash);
  if (found == pending_.end()) return nullptr;
  const auto next = std::find_if(found->second.begin(), found->second.end(),
                                 [this](const Pending& pending) { return !pending.contributions[self_].present; });
  return next == found->second.end() ? nullptr : &*next;
}

std::shared_ptr<const Error> Negotiation::refusal(int member, std::uint64_t name_hash) const {
  std::shared_ptr<const Error> undecided;
  has_undecided(member, [&](const Entry& entry) {
    const bool is_it = entry.type == RecordType::kRefused && entry.name_hash == name_hash;
    if (is_it) undecided = std::make_shared<const Error>(ErrorKind::kMismatch, entry.text());
    return is_it;
  });
  if (undecided != nullptr) return undecided;
  const Pending* pending = own_use(name_hash);
  return pending != nullptr && pending->contributions[member].present ? pending->error : nullptr;
}

std::vector<Rank> Negotiation::missing(std::uint64_t name_hash) const {
  std::vector<Rank> ranks;
  const Pending* pending = own_use(name_hash);
  for (int m = 0; m < static_cast<int>(members_.size()); ++m) {
    if (pending != nullptr && pending->contributions[m].present) continue;
    if (is_missing(m, name_hash)) ranks.push_back(members_[m]);
  }
  return ranks;
}

bool Negotiation::is_first_to_wait(std::uint64_t name_hash) const {
  const std::vector<Rank> absent = missing(name_hash);
  for (int m = 0; m < self_; ++m) {
    if (!joined_[m] && !std::binary_search(absent.begin(), absent.end(), members_[m])) return false;
  }
  return true;
}

// In what is not decided yet; whoever joins is not.
bool Negotiation::is_missing(int member, std::uint64_t name_hash) const {
  return !joined_[member] && !has_undecided(member, [&](const Entry& entry) {
    const bool has_name = entry.type == RecordType::kOperation || entry.type == RecordType::kRefused;
    return entry.type == RecordType::kJoin || (has_name && entry.name_hash == name_hash);
  });
}

void Negotiation::fail(Pending& pending, std::uint64_t name_hash, std::shared_ptr<const Error> error,
                       std::vector<Decision>& decisions) {
  pending.error = error;
  let_go(pending.contributions);
  for (Contribution& contribution : pending.contributions) contribution.payload = {};
  if (!is_member() || !pending.contributions[self_].present || pending.told_self) return;
  pending.told_self = true;
  Decision decision;
  decision.kind = Decision::Kind::kFail;
  decision.name_hash = name_hash;
  decision.error = std::move(error);
  decisions.push_back(std::move(decision));
}

}  // namespace ringcore::engine
