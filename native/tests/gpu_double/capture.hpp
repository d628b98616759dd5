// Capture of streams into graphs, with CUDA's rules: what a capturing stream is given is not run but becomes part of its
// graph, events carry a capture to other streams and back, and calls that CUDA holds for unsafe end captures.
#pragma once

#include <memory>

#include "double.hpp"

namespace gpu_double {

inline constexpr int kCaptureUnsupported = 900;
inline constexpr int kCaptureInvalidated = 901;
inline constexpr int kCaptureMerge = 902;
inline constexpr int kCaptureUnmatched = 903;
inline constexpr int kCaptureUnjoined = 904;
inline constexpr int kCaptureIsolation = 905;
inline constexpr int kCapturedEvent = 907;
inline constexpr int kCaptureWrongThread = 908;

struct Capture;

// Where an event was recorded last, if that stream was captured then.
struct CapturedAt {
  std::shared_ptr<Capture> capture;
  void* stream = nullptr;
};

// Runs it in the stream, or records it; returns CUDA's result.
int give(void* stream, Work work);
bool is_captured(void* stream);
// Of a call that CUDA forbids while streams are captured: ends the captures that it disturbs, in the modes of the thread
// and of the captures.
int unsafe_call();
// Ends the capture of a stream that is used as no capture allows.
int invalidate(void* stream, int result);
CapturedAt captured_at(void* stream);
// A stream waits for an event that was recorded there.
int wait_in_capture(void* stream, const CapturedAt& event);

}  // namespace gpu_double
