// What an Accelerator can be told. All fields have defaults; name the ones you set:
//
//   accelerant::Accelerator accelerator({.mixed_precision = accelerant::Precision::bf16,
//                                        .gradient_accumulation = {.steps = 4}});
//
// Fields that are std::optional fall back on the environment when they are left out, with the
// variable names of Hugging Face Accelerate, so that a launcher can set them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "accelerant/accelerator/performance_options.h"
#include "accelerant/accelerator/profile_options.h"
#include "accelerant/amp/grad_scaler.h"
#include "accelerant/dist/data_parallel.h"
#include "accelerant/dist/process_group_options.h"

namespace accelerant {

enum class Precision {
  no,    // everything in the type of the weights, as a rule float32
  fp16,  // autocast to float16 with loss scaling, on CPU too
  bf16,  // autocast to bfloat16; needs no loss scaling
};

struct GradientAccumulationOptions {
  // Micro-batches in a window, that is between two optimizer updates. At least 1.
  // Default: ACCELERATE_GRADIENT_ACCUMULATION_STEPS, else 1.
  std::optional<int64_t> steps = std::nullopt;

  // The last batch of the loader always ends a window, however short; the gradients are then the
  // mean over what it holds. false: windows go on from one epoch to the next.
  bool sync_with_dataloader = true;

  // Processes exchange gradients at every micro-batch, which costs time and may save memory. The
  // updates stay the same.
  bool sync_each_batch = false;
};

// What prepare does to loaders. Where a field is empty, the loader's own option counts.
struct DataLoaderOptions {
  // A batch of the loader is the batch of all processes together, each taking its part. false: each
  // process takes whole batches of that size.
  bool split_batches = false;

  // The main process reads for all and hands out parts. Default: only where the data set cannot be
  // read by every process. With one process it changes nothing.
  std::optional<bool> dispatch_batches = std::nullopt;

  // Every process gets the same number of batches of the same size; the last are filled up from the
  // start of the epoch.
  bool even_batches = true;

  // The seed of the order of samples.
  std::optional<uint64_t> seed = std::nullopt;

  // Batches are copied to the device while the host goes on.
  bool non_blocking = true;

  // Worker threads, and batches each of them prepares ahead.
  std::optional<int64_t> workers = std::nullopt;
  std::optional<int64_t> prefetch = std::nullopt;
};

// Autocast inside the models' forward and in Accelerator::autocast().
struct AutocastSettings {
  bool enabled = true;

  // Whether 16-bit copies of weights are kept within one forward. Default: torch's, true.
  std::optional<bool> cache_enabled = std::nullopt;
};

struct ProjectOptions {
  std::string dir = {};          // where the project keeps its files; empty: none
  std::string logging_dir = {};  // where trackers write; empty: the same

  // How many checkpoints save_state() leaves in `<dir>/checkpoints`: when a new one is safe, the oldest are
  // removed. At least 1. Default: all.
  std::optional<int64_t> total_limit = std::nullopt;

  // The number of the first checkpoint; those in the folder already are counted on from. Default: 0.
  int64_t iteration = 0;

  // "auto": prepare() loads the newest checkpoint of the project, if there is one, and the training goes on where it
  // was, with no more code. "restart": the same, but only in a process that its launcher has started again (accelerant
  // launch --max-restarts, torchrun), and only from what this very launch has saved (torchrun gives launches no name of
  // their own unless told by --rdzv-id: then from the newest). A path: that checkpoint, or, after
  // such a restart, what this launch has saved since. "no": nothing is loaded. Default: "restart" with `dir`, else "no".
  std::optional<std::string> resume = std::nullopt;

  // SIGTERM and SIGUSR1, which schedulers send before they take a machine away, make the training save its state
  // after the next update and end with exit code 75. Default: where the same command goes on, that is with `dir` and
  // `resume` as "auto" or a path.
  std::optional<bool> save_on_preemption = std::nullopt;
};

// What one step of a schedule stands for.
enum class ScheduleUnit {
  update,           // an optimizer update, whatever the number of processes
  unsharded_batch,  // a batch of one process: num_processes for each update, as in Accelerate
  sample,           // a sample of the data set, all processes together
  call,             // a call of scheduler.step(), whether the optimizer stepped or not
};

struct AcceleratorOptions {
  // Models and batches are moved to the device. false: the program places them itself.
  bool device_placement = true;

  // Use the CPU even where there is a GPU. Default: ACCELERATE_USE_CPU, else false.
  std::optional<bool> cpu = std::nullopt;

  // The device to use. Default: ACCELERATE_TORCH_DEVICE, else the GPU whose number is that of the
  // process on its machine (the first with one process), else the CPU.
  std::optional<c10::Device> device = std::nullopt;

  // Default: ACCELERATE_MIXED_PRECISION (no, fp16 or bf16), else no.
  std::optional<Precision> mixed_precision = std::nullopt;

  GradientAccumulationOptions gradient_accumulation = {};
  DataLoaderOptions data_loader = {};

  // Loss scaling for fp16. `device` and `enabled` are decided by the Accelerator: enabled = false
  // here switches scaling off, true has no effect with other precisions.
  GradScalerOptions scaler = {};

  AutocastSettings autocast = {};
  ProjectOptions project = {};
  ScheduleUnit schedule_unit = ScheduleUnit::update;

  // Whether optimizers of a kind that allows it step in fused kernels: see PrepareOptimizerOptions::fused. Gradients
  // then stay as backward() made them: clip_grad_norm_() over all of them clips inside the step.
  bool fused = true;

  // With several processes: how they are connected, and how models exchange gradients.
  dist::ProcessGroupOptions process_group = {};
  dist::DataParallelOptions data_parallel = {};

  // Settings of libtorch and of the process for speed.
  PerformanceOptions performance = {};

  // What profile() does where it is told nothing.
  ProfileOptions profile = {};
};

}  // namespace accelerant
