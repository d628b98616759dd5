// Memory of one GPU that several processes use, by CUDA's IPC, and words in it that streams wait for.
//
// Such words are used instead of events: a stream that waits for another process's event waits only for what was
// recorded before, so that the host would have to agree on each; and it waits for ever when that process dies, while
// anybody can write a word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.hpp"

namespace ringcore::device {

// Throws Error{kResource} where the driver is too old for what is declared here.
void check_ipc();

// Memory of this process that others may open. It is never freed: CUDA leaves undefined what happens when another
// process has not closed it before that, and nobody can tell. It is used again (`retire`).
struct ExportedMemory {
  cuda::Pointer pointer = 0;
  std::size_t bytes = 0;
  cuda::IpcMemHandle handle{};
};
// One of that size that was retired, or a new one. Throws Error{kResource}.
ExportedMemory take_exported(Device& device, std::size_t bytes);

// Memory of another process, as this one sees it. Throws Error{kResource} where it cannot be opened. A current context
// is needed but for its end, when no stream may use it any more.
class OpenedMemory {
 public:
  OpenedMemory(Device& device, const cuda::IpcMemHandle& handle);
  ~OpenedMemory();
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;
  cuda::Pointer pointer() const { return pointer_; }

 private:
  Device& device_;
  cuda::Pointer pointer_ = 0;
};

// Closes what was opened, and uses again what was exported, when the event is reached.
void retire(std::shared_ptr<const Event> ended, std::optional<ExportedMemory> exported,
            std::vector<std::unique_ptr<OpenedMemory>> opened);

// What `stream` is given from now on waits until the word is `value` or further; the difference counts, so that values
// may wrap around. A current context is needed.
void wait_for_word(cuda::Stream stream, cuda::Pointer word, std::uint32_t value);
// Behind all that `stream` was given, and seen behind it.
void write_word(cuda::Stream stream, cuda::Pointer word, std::uint32_t value);

}  // namespace ringcore::device
