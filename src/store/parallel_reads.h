// Reads many parts of files with several threads. Without torch.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "store/weight_file.h"

namespace accelerant::checkpoint {

// Calls f(0) to f(count - 1), each once, with at most `threads` threads, including the caller's.
// What they throw is thrown once all threads have ended.
void run_in_parallel(std::size_t count, int threads, const std::function<void(std::size_t)>& f);

// Performs all reads with at most `threads` threads, including the caller's. If targets overlap,
// the last read wins. Errors are thrown once all threads have ended; any part of the targets may be
// filled then.
void read_all(const std::vector<TensorRead>& reads, int threads);

}  // namespace accelerant::checkpoint
