#include "host_waits.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <array>
#include <set>
#include <string_view>

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// cudaMemcpyAsync is not listed: whether it blocks depends on the memory, and torch calls
// cudaStreamSynchronize after it if it has to wait.
constexpr std::array<std::string_view, 7> kWaits = {"cudaDeviceSynchronize",
                                                    "cudaStreamSynchronize",
                                                    "cudaEventSynchronize",
                                                    "cudaMemcpy",
                                                    "cudaMemset",
                                                    "cuCtxSynchronize",
                                                    "cuStreamSynchronize"};

int64_t waits_of(int steps, const std::function<void()>& step, const std::function<void()>& wait) {
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CUDA};
  wait();
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  for (int i = 0; i < steps; ++i) step();
  const auto result = profiler::disableProfiler();
  int64_t count = 0;
  for (const auto& event : result->events()) {
    for (const std::string_view name : kWaits) count += event.name() == name ? 1 : 0;
  }
  return count;
}

// Warnings from the threads of backward reach the thread that called it.
class CountingHandler : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    count_ += warning.msg().find("synchronizing CUDA operation") != std::string::npos ? 1 : 0;
  }
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
};

int64_t warnings_of(int steps, const std::function<void()>& step) {
#if defined(ACCELERANT_WITH_CUDA)
  CountingHandler handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  auto& state = c10::cuda::warning_state();
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN);
  for (int i = 0; i < steps; ++i) step();
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  return handler.count();
#else
  (void)steps;
  (void)step;
  return 0;
#endif
}

}  // namespace

HostWaits count_host_waits(const std::function<void()>& step, const std::function<void()>& wait) {
  // The profiler also waits when it starts and stops. Subtracting a short run from a long one
  // removes these waits.
  constexpr int kShort = 5, kLong = 25;
  waits_of(1, step, wait);  // the first use sets the profiler up
  const int64_t few = waits_of(kShort, step, wait), many = waits_of(kLong, step, wait);
  const int64_t warned = warnings_of(kLong - kShort, step);
  constexpr double kSteps = kLong - kShort;
  return {.per_step = static_cast<double>(many - few) / kSteps,
          .warned = static_cast<double>(warned) / kSteps};
}
