// From numbers to codes and back, by several threads.
#include <algorithm>
#include <atomic>

#include "../generic/internal.h"
#include "float_environment.h"
#include "parallel.h"
#include "runs.h"

namespace {

constexpr int64_t kChunk = 1 << 15;

// Calls `body(first, count)` for every part of n numbers.
template <class Body>
void for_chunks(int64_t n, Body body) {
  og::parallel_for((n + kChunk - 1) / kChunk, std::max(1, og_threads()), [&](int64_t chunk, int) {
    body(chunk * kChunk, std::min(kChunk, n - chunk * kChunk));
    return 0;
  });
}

}  // namespace

extern "C" void og_look_up(const float column[256], const uint8_t *codes, int64_t n, float *numbers) {
  og::count_run(OG_RAN_LOOK_UP);
  for_chunks(n, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i++) numbers[i] = column[codes[i]];
  });
}

extern "C" int og_quantize(const og_quantize_spec *spec, const float *x, int64_t n, uint8_t *codes,
                           float *values) {
  og::FloatEnvironment environment;
  std::atomic<int> has_nan{0};
  for_chunks(n, [&](int64_t first, int64_t count) {
    if (og_active->quantize(codes + first, values + first, x + first, count, spec)) has_nan = 1;
  });
  return has_nan;
}
