// Tiles on several threads. Tiles never depend on the number of threads, so
// neither does a single bit of a result.
#pragma once

#include <cstdint>
#include <functional>

namespace og {

// Call body(tile, worker) for every tile < tiles, worker < threads. Runs in the
// calling thread alone when the pool is busy with another operation. Returns
// the first non-zero value that a body returned (then later tiles are skipped).
int parallel_for(int64_t tiles, int threads, const std::function<int(int64_t, int)> &body);

}  // namespace og
