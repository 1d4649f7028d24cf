// The loss scale and everything that changes with it, as one block of device memory, and the rule
// by which it changes. Shared by host code and CUDA kernels; includes no torch headers.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ACCELERANT_HOST_DEVICE __host__ __device__
#else
#define ACCELERANT_HOST_DEVICE
#endif

namespace accelerant::kernels {

// Lives on the device of the scale. `scale` and `inv_scale` come first, because tensors that view
// this memory are handed out.
struct ScaleState {
  float scale;
  float inv_scale;               // 1 / scale, computed in double; stored for unscaling
  std::int32_t growth_tracker;   // clean updates since the scale last changed
  std::int32_t hysteresis_left;  // overflows still tolerated before backing off
  std::int64_t updates;          // calls of update() that evaluated an iteration
  std::int64_t skips;            // how many of those found an overflow
  std::int64_t last_skip;        // number (from 1) of the latest of those; 0: none yet
  std::int64_t stopped_at;       // number (from 1) of the update that stops the training; 0: none
  float stopped;                 // 1 if there is one, else 0; read by other kernels
  float unused;
};

// A copy of the state in host memory that the device can write, so reading it never waits. The
// writer makes `sequence` odd, writes, and makes it even again. A reader that sees it change reads
// again.
struct ScaleMirror {
  std::uint32_t sequence;
  std::uint32_t unused;
  ScaleState state;
};

struct UpdateRule {
  double growth_factor;
  double backoff_factor;
  std::int64_t growth_interval;
  float min_scale;
  float max_scale;
  std::int32_t hysteresis;
  bool refill_each_clean_update;  // otherwise only when the scale grows
  bool dynamic;                   // false: the scale stays as it is
  bool stops;                     // an overflow that no smaller scale would avoid stops everything
};

ACCELERANT_HOST_DEVICE inline void set_scale(ScaleState& state, float scale) {
  state.scale = scale;
  state.inv_scale = static_cast<float>(1.0 / static_cast<double>(scale));
}

// Whether an overflow has other causes than the scale: that cannot get smaller, or enlarges
// nothing.
ACCELERANT_HOST_DEVICE inline bool is_beyond_scaling(const ScaleState& state,
                                                     const UpdateRule& rule) {
  return !rule.dynamic || state.scale <= 1.0F || state.scale <= rule.min_scale;
}

// Evaluates one iteration. Products are computed in double and stored as float, as in PyTorch.
ACCELERANT_HOST_DEVICE inline void update_scale(ScaleState& state, bool found_inf,
                                                const UpdateRule& rule) {
  state.updates += 1;
  const bool was_stopped = state.stopped != 0.0F;
  if (found_inf || was_stopped) {
    state.skips += 1;
    state.last_skip = state.updates;
    if (was_stopped) return;  // left out whatever its gradients were
    if (rule.stops && is_beyond_scaling(state, rule)) {
      state.stopped_at = state.updates;
      state.stopped = 1.0F;
    }
    state.growth_tracker = 0;
    state.hysteresis_left -= state.hysteresis_left > 0 ? 1 : 0;
    if (!rule.dynamic || state.hysteresis_left > 0) return;
    const float lower = static_cast<float>(static_cast<double>(state.scale) * rule.backoff_factor);
    const float floor = rule.min_scale < state.scale ? rule.min_scale : state.scale;
    set_scale(state, lower > floor ? lower : floor);
    return;
  }
  if (rule.refill_each_clean_update) state.hysteresis_left = rule.hysteresis;
  const std::int64_t clean_updates = std::int64_t{state.growth_tracker} + 1;
  // Not "==": if the interval was lowered, the tracker may already be past it.
  if (clean_updates < rule.growth_interval) {
    state.growth_tracker = static_cast<std::int32_t>(clean_updates);
    return;
  }
  state.growth_tracker = 0;
  state.hysteresis_left = rule.hysteresis;
  if (!rule.dynamic || state.scale >= rule.max_scale) return;
  const double higher = static_cast<double>(state.scale) * rule.growth_factor;
  const double largest_float = 3.4028234663852886e38;
  if (higher > largest_float) return;  // the scale must stay finite
  set_scale(state, higher < rule.max_scale ? static_cast<float>(higher) : rule.max_scale);
}

// Copies the state to the mirror. One writer at a time: all updates of a scaler are on one stream,
// or the program orders them.
ACCELERANT_HOST_DEVICE inline void publish(const ScaleState& state, ScaleMirror* mirror) {
  volatile ScaleMirror* out = mirror;
  const std::uint32_t odd = out->sequence | 1U;  // even after a writer that did not finish
#if defined(__CUDA_ARCH__)
  out->sequence = odd;
  __threadfence_system();
#else
  __atomic_store_n(&mirror->sequence, odd, __ATOMIC_SEQ_CST);
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
  out->state.scale = state.scale;
  out->state.inv_scale = state.inv_scale;
  out->state.growth_tracker = state.growth_tracker;
  out->state.hysteresis_left = state.hysteresis_left;
  out->state.updates = state.updates;
  out->state.skips = state.skips;
  out->state.last_skip = state.last_skip;
  out->state.stopped_at = state.stopped_at;
  out->state.stopped = state.stopped;
#if defined(__CUDA_ARCH__)
  __threadfence_system();
  out->sequence = odd + 1;
#else
  __atomic_store_n(&mirror->sequence, odd + 1, __ATOMIC_SEQ_CST);
#endif
}

}  // namespace accelerant::kernels
