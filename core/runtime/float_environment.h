// The floating-point environment that C promises: round to nearest, denormal
// numbers kept. TensorFlow's threads flush them to zero and its main thread does
// not; without this a result would depend on where an operation happens to run.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#include <cstdint>

namespace og {

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(read()) { write(kDefault); }
  ~FloatEnvironment() { write(saved_); }
  FloatEnvironment(const FloatEnvironment &) = delete;
  FloatEnvironment &operator=(const FloatEnvironment &) = delete;

 private:
#if defined(__x86_64__)
  using Word = unsigned;
  static constexpr Word kDefault = 0x1f80;  // all exceptions masked
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#else
  using Word = uint64_t;
  static constexpr Word kDefault = 0;
  static Word read() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#endif
  Word saved_;
};

}  // namespace og
