#include "plan/nested_rings.hpp"

#include <algorithm>
#include <utility>

#include "plan/builder.hpp"

namespace ringcore::plan {
namespace {

// A block goes through a ring together with those of the same place in other groups, and in parts.
struct Piece {
  Nesting::Place place{};  // but for the ring's own level
  int part = 0;
};

struct Peers {
  Rank next = 0;
  Rank previous = 0;
};

struct RingShape {
  int shift = 0;  // the member at position i starts with block i + shift
  int reduce_rounds = 0;
  int gather_rounds = 0;
  bool final = false;
};

class Writer {
 public:
  Writer(std::string_view generator, const PlanRequest& request, const Nesting& nesting, Rank self)
      : request_(request),
        nesting_(nesting),
        own_(nesting.place_of(self)),
        builder_(generator, request, self, static_cast<std::uint32_t>(request.ranks() * request.parts)),
        points_(builder_.plan().chunks),
        staged_(nesting.levels() - (is_in_host(0) ? 1 : 0) > 1) {}

  Plan write() {
    const int top = nesting_.levels() - 1;
    for (int level = 0; reduces_ && level < top; ++level) {
      rings_at(level, {.shift = -1, .reduce_rounds = nesting_.size(level) - 1}, true);
    }
    const int rounds = nesting_.size(top) - 1;
    rings_at(top,
             {.shift = first_shift(top),
              .reduce_rounds = reduces_ ? rounds : 0,
              .gather_rounds = gathers_ ? rounds : 0,
              .final = true},
             true);
    for (int level = top - 1; gathers_ && level >= 0; --level) {
      rings_at(level, {.gather_rounds = nesting_.size(level) - 1}, false);
    }
    return std::move(builder_.plan());
  }

 private:
  // With which block a ring begins to reduce. In a reduce-scatter the own block comes last; else the outermost ring sends
  // it first.
  int first_shift(int level) const { return gathers_ && level == nesting_.levels() - 1 ? 0 : -1; }
  // Which block it has first when it has reduced, or begins to gather.
  int first_complete(int level) const { return reduces_ && level == nesting_.levels() - 1 ? 1 : 0; }

  void rings_at(int level, const RingShape& shape, bool inwards_out) {
    builder_.use_channel(level);
    const int at_once = staged_ ? 1 : request_.parts;
    for (int part = 0; part < request_.parts; part += at_once) {
      std::vector<Piece> pieces;
      add_pieces(pieces, {own_, part}, at_once, level + 1, inwards_out);
      // Rounds cost little in a host: what the next ring wants first goes first, so that the network soon has something.
      const std::size_t turns = !is_in_host(level) ? 1 : staged_ ? nesting_.size(level + 1) : pieces.size();
      const std::size_t count = pieces.size() / turns;
      for (auto from = pieces.begin(); from != pieces.end(); from += static_cast<std::ptrdiff_t>(count)) {
        ring(level, shape, {from, from + static_cast<std::ptrdiff_t>(count)});
      }
    }
  }

  // So many parts of each of the other groups' blocks, in the order in which the rings further out want these, or have them.
  void add_pieces(std::vector<Piece>& pieces, Piece piece, int parts, int outer, bool inwards_out) const {
    if (outer == nesting_.levels()) {
      for (int next = 0; next < parts; ++next) pieces.push_back({piece.place, piece.part + next});
      return;
    }
    const int first = inwards_out ? first_shift(outer) : first_complete(outer);
    for (int turn = 0; turn < nesting_.size(outer); ++turn) {
      piece.place[outer] = within(own_[outer] + first - turn, outer);
      add_pieces(pieces, piece, parts, outer + 1, inwards_out);
    }
  }

  // This rank's part in the ring of its group.
  void ring(int level, const RingShape& shape, const std::vector<Piece>& pieces) {
    const Peers peers{.next = neighbour(level, 1), .previous = neighbour(level, -1)};
    const auto chunks = [&](int round, std::size_t first, std::size_t count) {
      std::vector<std::uint32_t> found;
      found.reserve(count);
      for (std::size_t i = first; i < first + count; ++i) {
        Nesting::Place place = pieces[i].place;
        place[level] = within(own_[level] + shape.shift - round, level);
        found.push_back(static_cast<std::uint32_t>(nesting_.at(place) * request_.parts + pieces[i].part));
      }
      return found;
    };
    // Between hosts a message costs more than copying what is sent with others.
    const bool together = staged_ && !is_in_host(level) && request_.compression == Compression::kNone;
    const std::size_t count = together ? pieces.size() : 1;
    for (std::size_t i = 0; i < pieces.size(); i += count) send(peers, chunks(0, i, count));
    const int rounds = shape.reduce_rounds + shape.gather_rounds;
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < pieces.size(); i += count) {
        const std::vector<std::uint32_t> arriving = chunks(round + 1, i, count);
        receive(peers, arriving, round < shape.reduce_rounds, shape.final && round == shape.reduce_rounds - 1);
        if (round + 1 < rounds) send(peers, arriving);
      }
    }
  }

  void send(const Peers& peers, const std::vector<std::uint32_t>& chunks) {
    builder_.wait_for(last_written(chunks));
    if (chunks.size() == 1) return builder_.send(peers.next, chunks.front());
    builder_.send_all(peers.next, own(chunks));
  }

  void receive(const Peers& peers, const std::vector<std::uint32_t>& chunks, bool reduces, bool final) {
    builder_.wait_for(last_written(chunks));
    if (chunks.size() > 1 && reduces) {
      builder_.recv_reduce_all(peers.previous, own(chunks), final);
    } else if (chunks.size() > 1) {
      builder_.recv_all(peers.previous, own(chunks));
    } else if (reduces) {
      builder_.recv_reduce(peers.previous, chunks.front(), final);
    } else {
      builder_.recv(peers.previous, chunks.front());
    }
    for (const std::uint32_t chunk : chunks) points_[chunk] = builder_.last();
  }

  // Chunks that go together were written in one channel.
  Builder::Point last_written(const std::vector<std::uint32_t>& chunks) const {
    Builder::Point last;
    for (const std::uint32_t chunk : chunks) {
      if (points_[chunk].step >= last.step) last = points_[chunk];
    }
    return last;
  }

  std::vector<ChunkRef> own(const std::vector<std::uint32_t>& chunks) const {
    std::vector<ChunkRef> refs;
    refs.reserve(chunks.size());
    for (const std::uint32_t chunk : chunks) refs.push_back(builder_.own(chunk));
    return refs;
  }

  Rank neighbour(int level, int distance) const {
    Nesting::Place place = own_;
    place[level] = within(own_[level] + distance, level);
    return nesting_.at(place);
  }

  int within(int position, int level) const {
    const int size = nesting_.size(level);
    return (position % size + size) % size;
  }

  bool is_in_host(int level) const {
    const std::vector<int>& host_of = request_.topology->host_of;
    return host_of[builder_.self()] == host_of[neighbour(level, 1)];
  }

  const PlanRequest& request_;
  const Nesting& nesting_;
  const bool reduces_ = request_.collective != Collective::kAllgather;
  const bool gathers_ = request_.collective != Collective::kReduceScatter;
  Nesting::Place own_;
  Builder builder_;
  std::vector<Builder::Point> points_;  // by chunk: the step that has last written it
  // Several levels lie between hosts: one part after the other goes through all of them, as a ring is done with all of a
  // part's pieces at the same time.
  bool staged_;
};

}  // namespace

Nesting::Place Nesting::place_of(Rank rank) const {
  auto seat = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  Place place{};
  for (int level = 0; level < levels(); ++level) {
    place[level] = seat % size(level);
    seat /= size(level);
  }
  return place;
}

Rank Nesting::at(const Place& place) const {
  int seat = 0;
  for (int level = levels() - 1; level >= 0; --level) seat = seat * size(level) + place[level];
  return ranks_[static_cast<std::size_t>(seat)];
}

Symmetry Nesting::symmetry() const { return Symmetry({sizes_.rbegin(), sizes_.rend()}, ranks_).blocks_move(); }

Plan nested_rings(std::string_view generator, const PlanRequest& request, const Nesting& nesting, Rank self) {
  return Writer(generator, request, nesting, self).write();
}

}  // namespace ringcore::plan
