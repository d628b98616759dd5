// The arenas of the ranks that share a GPU, in its memory: each rank's own, and those of the others that it has opened.
//
// Behind an arena lie words, by which streams wait for each other. A rank waits for words of its own arena only, and
// the others write them: so it can let its stream go on by itself, whatever has become of the others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/ipc.hpp"

namespace ringcore::carriers {

class SharedArenas {
 public:
  // What a rank tells the others: where its arena is, and why it cannot take part.
  struct Notice {
    device::cuda::IpcMemHandle arena{};
    char problem[192] = {};  // empty: it can
  };

  // Makes the own arena, at `place` of the group. `stream` is the one that waits.
  SharedArenas(std::shared_ptr<const device::Stream> stream, int place, std::size_t bytes);
  // When the stream has come so far, closes the arenas of the others, and keeps the own one for the next.
  ~SharedArenas();
  SharedArenas(const SharedArenas&) = delete;
  SharedArenas& operator=(const SharedArenas&) = delete;

  // Whether the GPU has made it ready: only then the others may know of it.
  bool made() const { return made_ == nullptr || made_->reached(); }
  const Notice& notice() const { return notice_; }
  void refuse(const std::string& why);
  // Opens those of a group that this rank uses: the first one, and on the first all. Refuses where one cannot be
  // opened.
  void open(std::span<const Notice> group);

  std::size_t bytes() const { return bytes_; }
  int place() const { return place_; }
  device::cuda::Pointer data(int place) const;
  device::cuda::Pointer own() const { return data(place_); }

  // Words, which only grow.
  static constexpr int kResult = 0;
  static constexpr int packed(int place) { return 1 + 2 * place; }
  static constexpr int taken(int place) { return 2 + 2 * place; }
  // What the stream is given from now on waits until a word of the own arena has come to `value`.
  void wait(int word, std::uint32_t value) const;
  // Says so in the arena of another, behind what the stream was given.
  void write(int place, int word, std::uint32_t value) const;
  // Lets the stream go on through all waits for values that are not much larger than `value`.
  void abort(std::uint32_t value);

 private:
  device::cuda::Pointer address_of(int place, int word) const;

  std::shared_ptr<const device::Stream> stream_;
  device::Device& device_;
  int place_;
  std::size_t bytes_;
  Notice notice_;
  std::optional<device::ExportedMemory> own_;
  std::vector<std::unique_ptr<device::OpenedMemory>> opened_;  // by place; null where it is not used
  std::unique_ptr<const device::Event> made_;
  device::Stream aborting_;
};

}  // namespace ringcore::carriers
