// How often the host waits for the GPU: calls of the CUDA runtime that block, counted by torch's
// profiler.
#pragma once

#include <cstdint>
#include <functional>

struct HostWaits {
  double per_step = 0.0;  // calls the profiler saw
  double warned = 0.0;  // those of them that torch's own debug mode for synchronising calls reports
};

// Only where there is a GPU. Takes some 50 steps.
HostWaits count_host_waits(const std::function<void()>& step, const std::function<void()>& wait);
