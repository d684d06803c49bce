#include "runs.h"

#include <atomic>

namespace og {
namespace {

std::atomic<int64_t> runs[OG_RAN_COUNT];

}  // namespace

void count_run(og_ran engine) { runs[engine].fetch_add(1, std::memory_order_relaxed); }

}  // namespace og

extern "C" void og_runs(int64_t counts[OG_RAN_COUNT]) {
  for (int engine = 0; engine < OG_RAN_COUNT; engine++) counts[engine] = og::runs[engine];
}
