#include "runtime/timeline_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.hpp"

namespace ringcore {
namespace {

// Names are the user's: anything may stand in them.
void append_quoted(std::string& text, const std::string& word) {
  text += '"';
  for (const char c : word) {
    if (c == '"' || c == '\\') text += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      text += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      text += escaped;
    }
  }
  text += '"';
}

void append_microseconds(std::string& text, const char* key, Nanoseconds time) {
  char number[64];
  std::snprintf(number, sizeof(number), ",\"%s\":%.3f", key, static_cast<double>(time) / 1000);
  text += number;
}

// A row of its own for what the program waits for, one a lane, and below that one for each channel of its plans.
int row_of(const engine::Span& span) { return (span.lane - engine::kProgramLane) * 1000 + span.channel + 1; }

std::string name_of_row(const engine::Span& span) {
  if (span.lane == engine::kProgramLane) return "the program waits";
  const std::string lane = "lane " + std::to_string(span.lane);
  return span.channel < 0 ? lane : lane + ", channel " + std::to_string(span.channel);
}

const char* category_of(const engine::Span& span) {
  if (span.lane == engine::kProgramLane) return "wait";
  return span.channel < 0 ? "operation" : "step";
}

}  // namespace

TimelineFile::TimelineFile(const std::string& path, Rank rank, Nanoseconds origin)
    : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)), rank_(rank), origin_(origin) {
  if (!file_) throw Error(ErrorKind::kResource, path + ": " + std::strerror(errno));
  const std::string number = std::to_string(rank);
  text_ = "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + number + ",\"args\":{\"name\":\"rank " + number +
          "\"}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":" + number +
          ",\"args\":{\"sort_index\":" + number + "}},\n";
  flush();
}

void TimelineFile::add(const engine::Span& span) {
  if (!file_) return;
  if (rows_.emplace(span.lane, span.channel).second) add_row(span);
  text_ += "{\"ph\":\"X\",\"name\":";
  append_quoted(text_, span.activity);
  text_ += std::string(",\"cat\":\"") + category_of(span) + "\",\"pid\":" + std::to_string(rank_) +
           ",\"tid\":" + std::to_string(row_of(span));
  append_microseconds(text_, "ts", span.begin - origin_);
  append_microseconds(text_, "dur", span.end - span.begin);
  text_ += ",\"args\":{\"tensor\":";
  append_quoted(text_, span.name);
  text_ += ",\"bytes\":" + std::to_string(span.bytes);
  if (span.submitted != 0) append_microseconds(text_, "submitted", span.submitted - origin_);
  if (span.awaited) text_ += ",\"awaited\":true";
  text_ += "}},\n";
}

void TimelineFile::add_row(const engine::Span& span) {
  const std::string row =
      ",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(row_of(span)) + ",\"args\":{";
  text_ += "{\"ph\":\"M\",\"name\":\"thread_name\"" + row + "\"name\":\"" + name_of_row(span) + "\"}},\n";
  text_ +=
      "{\"ph\":\"M\",\"name\":\"thread_sort_index\"" + row + "\"sort_index\":" + std::to_string(row_of(span)) + "}},\n";
}

// A disk that is full ends the recording, and not the training. Whoever reads the file leaves a line out that is cut.
void TimelineFile::flush() {
  std::size_t written = 0;
  while (file_ && written < text_.size()) {
    const ssize_t more = ::write(file_.get(), text_.data() + written, text_.size() - written);
    if (more >= 0) {
      written += static_cast<std::size_t>(more);
    } else if (errno != EINTR) {
      failure_ = std::strerror(errno);
      file_ = Fd();
    }
  }
  text_.clear();
}

}  // namespace ringcore
