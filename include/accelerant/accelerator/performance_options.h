// Settings of libtorch and of the process that make training faster, as part of AcceleratorOptions:
//
//   accelerant::Accelerator accelerator({.performance = {.allow_tf32 = true, .channels_last = true}});
//
// An Accelerator sets them when it is made. All but channels_last are settings of the whole process: they hold for
// everything that libtorch does in it, and stay when the Accelerator is gone. A field that is left empty leaves what
// libtorch, the environment or the program has set. What each of them gains is in docs/performance.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerant {

struct PerformanceOptions {
  // float32 matrix products and convolutions on NVIDIA GPUs use TF32: 10 bits of mantissa instead of 23, several
  // times faster. libtorch's own: false for products, true for convolutions.
  std::optional<bool> allow_tf32 = std::nullopt;

  // Matrix products of float16 or bfloat16 on NVIDIA GPUs may add partial sums in 16 bits, which is faster for some
  // shapes. libtorch's own: true.
  std::optional<bool> allow_fp16_reduced_precision_reduction = std::nullopt;
  std::optional<bool> allow_bf16_reduced_precision_reduction = std::nullopt;

  // cuDNN tries its algorithms on each new shape and keeps the fastest: good for shapes that do not change, bad for those
  // that change all the time. The choice, and so the last bits, may differ from run to run. libtorch's own: false.
  std::optional<bool> cudnn_benchmark = std::nullopt;

  // prepare lays the four-dimensional parameters of models, the weights of 2-d convolutions, out with channels last
  // (NHWC); convolutions then compute in that layout, on CPU and GPU, whatever the layout of the batch. Values, shapes and
  // saved files stay the same. Default: false.
  bool channels_last = false;

  // Threads that operators on the CPU use, at least 1. libtorch's own: OMP_NUM_THREADS, else the number of cores; with
  // several processes on a machine, an Accelerator divides the cores among them.
  std::optional<int64_t> cpu_threads = std::nullopt;

  // The cores that this process may run on: a list such as "0-7,16-23", or "auto" for an equal part of those that it
  // may use now, by its number on the machine, with the threads of one core together. All its threads are moved. An
  // empty text: all stay where they are. Default: "auto" where ACCELERATE_CPU_AFFINITY is true, else as it is.
  std::optional<std::string> cpu_affinity = std::nullopt;

  // Memory that is freed stays with the process for the next step instead of going back to the system, which would
  // have to clear new pages for it (glibc's malloc; not if MALLOC_* or GLIBC_TUNABLES say something else). Once on, it
  // cannot be switched off. Default: on for training on the CPU, else off.
  std::optional<bool> keep_freed_memory = std::nullopt;

  // Settings of the allocator of GPU memory, in the form of PYTORCH_ALLOC_CONF: "expandable_segments:True" keeps
  // memory from being cut into pieces when sizes change. Make the Accelerator before anything is on the GPU. Default:
  // what that variable says.
  std::optional<std::string> gpu_allocator = std::nullopt;
};

}  // namespace accelerant
