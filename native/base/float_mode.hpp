// Keeps numbers near zero in sums.
//
// A framework may have told its threads to take subnormal numbers for zero (XLA does, and torch.set_flush_denormal), and the
// engine's arithmetic runs on whichever thread comes by: ranks would come to different sums of the same numbers.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ringcore {

// While this lives its thread computes with subnormal numbers.
class FloatMode {
 public:
  FloatMode() : before_(read()) {
    if ((before_ & kFlush) != 0) write(before_ & ~kFlush);
  }
  ~FloatMode() {
    if ((before_ & kFlush) != 0) write(before_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

#if defined(__x86_64__)
  using Word = unsigned;
  static constexpr Word kFlush = 0x8040;  // of results, and of operands
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kFlush = Word{1} << 24 | Word{1} << 19;  // of float32 and float64, and of float16
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = unsigned;
  static constexpr Word kFlush = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif

 private:
  const Word before_;
};

}  // namespace ringcore
