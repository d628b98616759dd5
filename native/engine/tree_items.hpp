// What travels along the tree, as bytes: a few for an operation that both ends know.
//
// Each direction of each connection has a table of the operations that were described there, which both ends keep alike.
// Positions are counted from the item before, fields that say nothing are left out. The reader trusts nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/negotiation.hpp"
#include "engine/signatures.hpp"

namespace ringcore::engine {

// Why a tree ends.
struct TreeEnd {
  int member = 0;  // who leaves, or removes the process set
  bool removes = false;
  Rank first_left = 0;  // who has left before it, and made it leave; or itself
  std::string why;  // as it says at its farewell
};

struct TreeItem {
  enum class Kind : std::uint8_t {
    kEntry,  // the next entry of the log of every member in [begin, end)
    kAlike,  // the next entry of every log is what the reader itself has there; only from the root
    kOpen,  // upwards: somebody wants to see what is announced, though not by all; downwards: it is shown
    kEnd,  // upwards: somebody wants the tree to end; downwards: announce nothing more
    kLast,  // upwards: nothing more comes from there; downwards: from nobody
    kBroken,  // a member has left without ending the tree
    kCarriedOut,  // upwards: the whole subtree has the results of these operations; downwards: all members have
  };
  Kind kind = Kind::kEntry;
  int begin = 0;  // in the order of the tree
  int end = 0;
  std::uint64_t position = 0;
  std::uint64_t count = 1;  // of a kAlike: so many positions; of a kCarriedOut: operations, by their numbers
  bool open = false;
  std::shared_ptr<const TreeEnd> why;  // of kEnd and kBroken
  Entry entry;

  bool says_the_same(const TreeItem& other) const;
};

// The largest body of a record.
inline constexpr std::size_t kMaxTreeBytes = kMaxRecordBytes - sizeof(ShortHeader) - 8;

class TreeWriter {
 public:
  // Of items that are mostly about [begin, end).
  TreeWriter(int begin, int end) : begin_(begin), end_(end) {}

  void add(const TreeItem& item);
  bool empty() const { return bodies_.empty() && body_.empty() && run_ == 0; }
  // The bodies of the records to be sent.
  std::vector<std::vector<std::byte>> take();

 private:
  void write_run();
  void write_entry(const TreeItem& item);
  void write_end(const TreeItem& item);
  void close_before(std::size_t bytes);

  int begin_;
  int end_;
  Signatures described_{1};
  TreeItem::Kind run_kind_ = TreeItem::Kind::kAlike;  // of these only their number is to be written
  std::uint64_t run_from_ = 0;
  std::uint64_t run_ = 0;
  std::uint64_t next_position_ = 0;
  std::vector<std::byte> body_;
  std::vector<std::vector<std::byte>> bodies_;
};

class ByteReader;

class TreeReader {
 public:
  // Items are about members in [begin, end), of so many in all.
  TreeReader(int begin, int end, int members) : begin_(begin), end_(end), members_(members) {}

  // All items of a record. Throws Error{kProtocol}.
  std::vector<TreeItem> read(std::span<const std::byte> body);

 private:
  TreeItem read_entry(ByteReader& bytes, std::uint8_t first);
  TreeItem read_end(ByteReader& bytes, TreeItem::Kind kind) const;
  void describe(Entry& entry, ByteReader& bytes, bool has_descriptor);

  int begin_;
  int end_;
  int members_;
  Signatures described_{1};
  std::uint64_t next_position_ = 0;
};

}  // namespace ringcore::engine
