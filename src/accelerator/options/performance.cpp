#include "accelerator/options/performance.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/StringUtil.h>

#include <cstdlib>
#include <exception>
#include <limits>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerator/options/environment_variables.h"
#include "core/cpu_affinity.h"
#include "core/heap.h"
#include "watch/network.h"

namespace accelerant::detail {
namespace {

constexpr const char* kAffinityVariable = "ACCELERATE_CPU_AFFINITY";
constexpr const char* kAuto = "auto";

void set_gpu_allocator(const std::string& settings) {
  const auto refuse = [&](const char* reason) {
    throw Error(ErrorDetails{.problem = "performance.gpu_allocator is invalid",
                             .expected = "settings as in PYTORCH_ALLOC_CONF",
                             .got = c10::str("\"", settings, "\": ", reason)});
  };
  try {
    c10::CachingAllocator::setAllocatorSettings(settings);
  } catch (const c10::Error& error) {
    refuse(error.what_without_backtrace());
  } catch (const std::exception& error) {  // from parsing a number
    refuse(error.what());
  }
}

// Processes on one machine that each use all cores slow each other down.
void set_threads(const PerformanceOptions& options, const dist::Environment& environment) {
  if (options.cpu_threads) {
    at::set_num_threads(static_cast<int>(*options.cpu_threads));
  } else if (environment.use_distributed() && std::getenv("OMP_NUM_THREADS") == nullptr) {
    at::set_num_threads(dist::threads_per_process(environment));
  }
}

void set_affinity(const PerformanceOptions& options, const dist::Environment& environment) {
  if (options.cpu_affinity->empty()) return;
  const std::vector<int> cores =
      *options.cpu_affinity == kAuto
          ? part_of(usable_cpus(), environment.local_process_index, environment.local_num_processes)
          : parse_cpu_list(*options.cpu_affinity);
  set_cpu_affinity(cores);
  // More threads than cores only wait for each other.
  const auto most = static_cast<int>(cores.size());
  if (!options.cpu_threads && at::get_num_threads() > most) at::set_num_threads(most);
}

}  // namespace

PerformanceOptions resolve(PerformanceOptions options, const c10::Device& device) {
  if (options.cpu_threads &&
      (*options.cpu_threads < 1 || *options.cpu_threads > std::numeric_limits<int>::max())) {
    throw Error(ErrorDetails{.problem = "The option performance.cpu_threads is out of range",
                             .expected = "at least 1",
                             .got = c10::str(*options.cpu_threads)});
  }
  if (!options.cpu_affinity) {
    options.cpu_affinity = flag_from_environment(kAffinityVariable).value_or(false) ? kAuto : "";
  }
  if (!options.cpu_affinity->empty() && *options.cpu_affinity != kAuto) {
    parse_cpu_list(*options.cpu_affinity);
  }
  if (!options.keep_freed_memory) options.keep_freed_memory = device.is_cpu();
  return options;
}

void apply(const PerformanceOptions& options, const dist::Environment& environment) {
  at::Context& context = at::globalContext();
  if (options.allow_tf32) {
    context.setAllowTF32CuBLAS(*options.allow_tf32);
    context.setAllowTF32CuDNN(*options.allow_tf32);
  }
  if (const auto& allow = options.allow_fp16_reduced_precision_reduction) {
    context.setAllowFP16ReductionCuBLAS(*allow);
  }
  if (const auto& allow = options.allow_bf16_reduced_precision_reduction) {
    context.setAllowBF16ReductionCuBLAS(*allow);
  }
  if (options.cudnn_benchmark) context.setBenchmarkCuDNN(*options.cudnn_benchmark);
  if (options.gpu_allocator) set_gpu_allocator(*options.gpu_allocator);

  // Set threads first: set_affinity() narrows the cores, and they must not be divided twice.
  set_threads(options, environment);
  set_affinity(options, environment);
  if (*options.keep_freed_memory) keep_freed_memory();
}

}  // namespace accelerant::detail
