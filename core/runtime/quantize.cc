// Linear quantization by several threads.
#include <algorithm>
#include <atomic>

#include "../generic/internal.h"
#include "float_environment.h"
#include "parallel.h"

extern "C" int og_quantize(const og_quantize_spec *spec, const float *x, int64_t n, uint8_t *codes,
                           float *values) {
  constexpr int64_t kChunk = 1 << 15;
  og::FloatEnvironment environment;
  std::atomic<int> has_nan{0};
  og::parallel_for((n + kChunk - 1) / kChunk, std::max(1, og_threads()), [&](int64_t chunk, int) {
    int64_t first = chunk * kChunk, count = std::min(kChunk, n - first);
    if (og_active->quantize(codes + first, values + first, x + first, count, spec)) has_nan = 1;
    return 0;
  });
  return has_nan;
}
