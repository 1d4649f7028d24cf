// How often the host waits for the GPU: blocking calls of the CUDA runtime, counted by torch's
// profiler.
#pragma once

#include <cstdint>
#include <functional>

struct HostWaits {
  double per_step = 0.0;  // calls that the profiler saw
  double warned = 0.0;    // calls reported by torch's own debug mode for synchronising calls
};

// Only for machines with a GPU. Takes about 50 steps.
HostWaits count_host_waits(const std::function<void()>& step, const std::function<void()>& wait);
