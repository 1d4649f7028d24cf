#include "accelerator/kernel_trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "core/files.h"

namespace accelerant::detail {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

ProfilerConfig config_of(const ProfileOptions& options) {
  return ProfilerConfig(ProfilerState::KINETO, options.record_shapes, options.profile_memory,
                        /*with_stack=*/false, options.with_flops, /*with_modules=*/false);
}

std::set<ActivityType> activities_on(c10::Device device) {
  if (device.is_cuda()) return {ActivityType::CPU, ActivityType::CUDA};
  return {ActivityType::CPU};
}

template <class F>
auto with_profiler(F&& f) {
  try {
    return f();
  } catch (const std::exception& error) {
    throw Error(ErrorDetails{
        .problem = "torch's profiler cannot record kernels",
        .expected = "a libtorch built with its profiler, which is not in use elsewhere",
        .got = error.what(),
        .hint = "profile without with_kernels"});
  }
}

}  // namespace

KernelTrace::~KernelTrace() {
  if (!is_running_) return;
  try {
    kineto::disableProfiler();
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
  }
}

void KernelTrace::prepare() {
  if (std::exchange(is_prepared_, true)) return;
  with_profiler([&] { kineto::prepareProfiler(config_of(options_), activities_on(device_)); });
}

void KernelTrace::start() {
  prepare();
  with_profiler([&] { kineto::enableProfiler(config_of(options_), activities_on(device_)); });
  is_running_ = true;
}

void KernelTrace::stop(const std::string& path) {
  if (!std::exchange(is_running_, false)) return;
  is_prepared_ = false;
  const std::string unfinished = path + ".tmp";
  with_profiler([&] { kineto::disableProfiler()->save(unfinished); });
  rename_path(unfinished, path);
}

}  // namespace accelerant::detail
