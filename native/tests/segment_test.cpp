#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "link_fixtures.hpp"
#include "transport/pool.hpp"
#include "transport/shm/arena_view.hpp"

namespace ringcore::test {
namespace {

using transport::Arena;
using transport::page_bytes;

constexpr std::size_t kArenaBytes = 8 << 20;

template <typename Action>
std::string error_of(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "no error";
}

std::size_t memory_bytes(const Segment& segment) {
  struct stat status{};
  ::fstat(segment.fd(), &status);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

// Lets this process have so many bytes more.
std::size_t allow_address_bytes(std::size_t more) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{.rlim_cur = pages * page_bytes() + more, .rlim_max = RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &limit);
  return more;
}

Fd copy_of(const Segment& segment) { return Fd(::dup(segment.fd())); }

}  // namespace

TEST_CASE("segment: a peer maps what the owner made") {
  const Segment own = Segment::create(1, 3, kArenaBytes);
  const Segment peers = Segment::attach(copy_of(own), 1, 3);
  CHECK(own.arena().size() == kArenaBytes);
  CHECK(peers.arena().empty());
  CHECK(peers.arena_bytes() == kArenaBytes);
  own.map_inbox_page(2).data()[5] = std::byte{7};
  CHECK(peers.map_inbox_page(2).data()[5] == std::byte{7});
  CHECK(peers.map_inbox_page(0).data()[5] == std::byte{0});
  const std::size_t bytes = transport::InboxLayout(3).bytes();
  CHECK(own.inbox_offset(0) + bytes == own.inbox_offset(1));
  const Rank last = 3 + transport::kPlacesToCome - 1;
  CHECK(own.inbox_offset(last) + bytes <= own.arena_offset());
  const std::string none = error_of(ErrorKind::kInvalidArgument, [&] { own.inbox_offset(last + 1); });
  CHECK(none.find("rank 35 has no inbox") == 0);
  CHECK(::ftruncate(own.fd(), 4096) != 0);  // sealed: nobody can pull the pages away
}

TEST_CASE("segment: what is not the peer's segment is refused") {
  const Segment own = Segment::create(1, 3, kArenaBytes);
  const auto refusal = [&](Fd fd, Rank rank, int size) {
    return error_of(ErrorKind::kProtocol, [&] { Segment::attach(std::move(fd), rank, size); });
  };
  CHECK(refusal(copy_of(own), 2, 3).find("it belongs to rank 1 of 3") != std::string::npos);
  CHECK(refusal(copy_of(own), 1, 2).find("it belongs to rank 1 of 3") != std::string::npos);
  CHECK(refusal(Fd(::open("/dev/null", O_RDWR)), 1, 3).find("not a segment") != std::string::npos);

  Fd unsealed(::memfd_create("other", MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), 64 << 20) == 0);
  CHECK(refusal(Fd(::dup(unsealed.get())), 1, 3).find("not sealed") != std::string::npos);
  REQUIRE(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  CHECK(refusal(std::move(unsealed), 1, 3).find("does not begin like one") != std::string::npos);

  const Segment newer = Segment::create(1, 3, kArenaBytes);
  const std::uint32_t version = 99;
  REQUIRE(::pwrite(newer.fd(), &version, sizeof(version), 8) == sizeof(version));
  CHECK(refusal(copy_of(newer), 1, 3).find("layout version 99") != std::string::npos);
}

TEST_CASE("segment: the arena shrinks to what the process may have") {
  Child child([] {
    const rlimit limit{.rlim_cur = std::size_t{1} << 30, .rlim_max = std::size_t{1} << 30};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Segment own = Segment::create(0, 2, std::uint64_t{1} << 36);
    return own.arena().size() >= (256 << 20) && own.arena().size() < (1 << 30);
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("segment: of the arenas of many ranks, address space holds what is used") {
  constexpr int kRanks = 8;
  constexpr std::size_t kLarge = std::size_t{64} << 30;
  std::vector<Fd> files;
  for (Rank rank = 0; rank < kRanks; ++rank) files.push_back(copy_of(Segment::create(rank, kRanks, kLarge)));
  Child child([&] {
    const std::size_t allowed = allow_address_bytes(std::size_t{1} << 30);
    const Segment own = Segment::create(0, kRanks);
    if (own.arena().size() < (64 << 20) || own.arena().size() > allowed / 4) return false;
    for (Rank peer = 1; peer < kRanks; ++peer) {
      const auto segment =
          std::make_shared<Segment>(Segment::attach(std::move(files[static_cast<std::size_t>(peer)]), peer, kRanks));
      transport::ArenaView view(segment);
      transport::ArenaView other(segment);
      // Anywhere in it, across the borders of windows too.
      for (const std::size_t offset : {std::size_t{0}, (std::size_t{16} << 20) - 100, kLarge - 4096}) {
        view.at(offset, 4096)[4095] = static_cast<std::byte>(peer);
        if (other.at(offset + 4095, 1)[0] != static_cast<std::byte>(peer)) return false;
        if (view.at(offset, 4096) != view.at(offset + 95, 1) - 95) return false;
      }
      // Also what needs a window of more than the smallest size, in either half of it.
      for (const std::size_t offset : {std::size_t{3} << 20, std::size_t{24} << 20, std::size_t{40} << 20}) {
        constexpr std::size_t kPiece = std::size_t{20} << 20;
        std::byte* const piece = view.at(offset, kPiece);
        piece[0] = piece[kPiece - 1] = static_cast<std::byte>(0x40 + peer);
        if (other.at(offset, 1)[0] != piece[0] || other.at(offset + kPiece - 1, 1)[0] != piece[0]) return false;
      }
      if (peer > 1) continue;
      const std::string outside = error_of(ErrorKind::kProtocol, [&] { view.at(kLarge - 4096, 4097); });
      const std::string large = error_of(ErrorKind::kResource, [&] { view.at(0, std::size_t{2} << 30); });
      if (outside.find("outside of its arena") == std::string::npos) return false;
      if (large.find("ulimit -v") == std::string::npos) return false;
    }
    return true;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("arena: without room for fusion buffers it says what to set") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  const std::string error = error_of(ErrorKind::kResource, [&] { Arena arena(own, kArenaBytes); });
  CHECK(error.find("Set RINGCORE_ARENA_BYTES to more than 8388608, or RINGCORE_FUSION_THRESHOLD_BYTES lower") !=
        std::string::npos);
}

TEST_CASE("segment: many ranks have smaller rings, never too small for a record") {
  for (const int size : {1, 2, 16, 17, 64, 1000, 100'000}) {
    const transport::InboxLayout layout(size);
    std::size_t end = page_bytes();
    for (int lane = 0; lane < kLaneCount; ++lane) {
      CHECK(layout.lane_offset(lane) == end);
      CHECK(layout.lane_bytes(lane) >= Link::kMaxContiguous);
      CHECK((layout.lane_bytes(lane) & (layout.lane_bytes(lane) - 1)) == 0);
      CHECK(layout.lane_offset(lane) % page_bytes() == 0);  // can be mapped
      CHECK(layout.lane_bytes(lane) % page_bytes() == 0);
      end += layout.lane_bytes(lane);
    }
    CHECK(layout.bytes() == end);
  }
  CHECK(transport::InboxLayout(64).bytes() < transport::InboxLayout(2).bytes());
}

TEST_CASE("segment: reserved pages are there") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  const std::size_t before = memory_bytes(own);
  own.reserve_inbox(1);
  CHECK(memory_bytes(own) - before == transport::InboxLayout(2).bytes());
  own.reserve_inbox(1);
  CHECK(memory_bytes(own) - before == transport::InboxLayout(2).bytes());
}

TEST_CASE("arena: pieces are apart, aligned, and inside") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  Arena arena(own);
  std::vector<std::pair<std::byte*, std::size_t>> pieces;
  for (const std::size_t bytes : {0UL, 1UL, 4095UL, 4096UL, 4097UL, 1000000UL}) {
    std::byte* piece = arena.allocate(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(piece) % page_bytes() == 0);
    REQUIRE(arena.offset_of(piece, bytes));
    for (const auto& [other, other_bytes] : pieces) {
      CHECK((piece + bytes <= other || other + other_bytes <= piece));
    }
    std::memset(piece, 0xff, bytes);
    pieces.emplace_back(piece, bytes);
  }
  const auto pages = [](std::size_t bytes) {
    return std::max<std::size_t>((bytes + page_bytes() - 1) / page_bytes(), 1);
  };
  std::size_t expected = 0;
  for (const auto& piece : pieces) expected += pages(piece.second) * page_bytes();
  CHECK(arena.allocated_bytes() == expected);
  for (const auto& [piece, bytes] : pieces) arena.release(piece);
  CHECK(arena.allocated_bytes() == 0);
}

TEST_CASE("arena: full is an error, and what is released is used again") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  Arena arena(own);
  std::vector<std::byte*> pieces;
  for (std::size_t i = 0; i < 8; ++i) pieces.push_back(arena.allocate(1 << 20));
  CHECK(error_of(ErrorKind::kResource, [&] { arena.allocate(1); }).find("8388608 of 8388608 bytes are in use") !=
        std::string::npos);
  arena.release(pieces[3]);
  arena.release(pieces[5]);
  CHECK(error_of(ErrorKind::kResource, [&] { arena.allocate(2 << 20); }) != "no error");
  arena.release(pieces[4]);  // joins both neighbours
  CHECK(arena.allocate(3 << 20) == pieces[3]);
  CHECK(error_of(ErrorKind::kResource, [&] { arena.allocate(SIZE_MAX); }) != "no error");
}

TEST_CASE("pool: what came back is handed out again, and no more is kept than was in use") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  Arena arena(own);
  transport::Pool pool(arena);
  std::byte* first = pool.allocate(1 << 20);
  std::byte* second = pool.allocate(1 << 20);
  std::memset(second, 0xab, 1 << 20);
  pool.release(first);
  pool.release(second);
  CHECK(arena.allocated_bytes() == 2 << 20);
  CHECK(pool.allocate(1 << 20) == second);
  CHECK(second[5] == std::byte{0xab});  // its pages were not given back
  // Another size: 2 MiB were in use at most, so the piece that waits goes.
  std::byte* large = pool.allocate(2 << 20);
  CHECK(arena.allocated_bytes() == 3 << 20);
  pool.release(second);
  pool.release(large);
  CHECK(arena.allocated_bytes() == 3 << 20);
  CHECK(error_of(ErrorKind::kResource, [&] { pool.allocate(kArenaBytes + 1); }) != "no error");
}

TEST_CASE("arena: the smallest block that fits is taken") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  Arena arena(own);
  std::byte* large = arena.allocate(2 << 20);
  arena.allocate(1);
  std::byte* small = arena.allocate(1 << 20);
  arena.allocate(1);
  arena.release(large);
  arena.release(small);
  CHECK(arena.allocate(1 << 20) == small);
}

TEST_CASE("arena: memory exists while it is handed out, and only then") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  Arena arena(own);
  const std::size_t before = memory_bytes(own);
  std::byte* piece = arena.allocate(1 << 20);
  CHECK(memory_bytes(own) - before == 1 << 20);
  arena.release(piece);
  CHECK(memory_bytes(own) == before);
}

TEST_CASE("arena: more than the machine has is an error, not a signal") {
  const Segment own = Segment::create(0, 2);
  Arena arena(own);
  const std::string error = error_of(ErrorKind::kResource, [&] { arena.allocate(own.arena().size()); });
  CHECK(error.find("no shared memory for") == 0);
  CHECK(arena.allocated_bytes() == 0);
}

TEST_CASE("arena: registered ranges are told from others") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  Arena arena(own);
  const std::byte* base = own.arena().data();
  CHECK(*arena.offset_of(base + 10, 20) == 10);
  CHECK(*arena.offset_of(base, kArenaBytes) == 0);
  CHECK_FALSE(arena.offset_of(base + 1, kArenaBytes));
  CHECK_FALSE(arena.offset_of(base + 1, SIZE_MAX));
  CHECK_FALSE(arena.offset_of(base - 1, 1));
  CHECK_FALSE(arena.offset_of(&arena, 1));
  CHECK_FALSE(arena.offset_of(nullptr, 0));
}

TEST_CASE("arena: what is not a piece is not released") {
  const Segment own = Segment::create(0, 2, kArenaBytes);
  Arena arena(own);
  std::byte* piece = arena.allocate(8192);
  int elsewhere = 0;
  arena.release(nullptr);
  for (std::byte* wrong : {piece + 4096, reinterpret_cast<std::byte*>(&elsewhere)}) {
    CHECK(error_of(ErrorKind::kInvalidArgument, [&] { arena.release(wrong); }) != "no error");
  }
  arena.release(piece);
  CHECK(error_of(ErrorKind::kInvalidArgument, [&] { arena.release(piece); }) != "no error");
}

TEST_CASE("arena: from several threads") {
  const Segment own = Segment::create(0, 2, 64 << 20);
  Arena arena(own);
  std::atomic<int> wrong = 0;
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 300; ++i) {
      const std::size_t bytes = 1 + random() % 100'000;
      std::byte* piece = arena.allocate(bytes);
      std::memset(piece, static_cast<int>(seed), bytes);
      std::this_thread::yield();
      for (std::size_t k = 0; k < bytes; k += 512) wrong += std::to_integer<unsigned>(piece[k]) != seed;
      arena.release(piece);
    }
  };
  std::thread threads[] = {std::thread(work, 1), std::thread(work, 2), std::thread(work, 3)};
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(arena.allocated_bytes() == 0);
}

}  // namespace ringcore::test
