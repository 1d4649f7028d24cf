// What an Accelerator can be told: AcceleratorOptions with its parts, and the options of backward()
// and profile(). All fields have defaults; name the ones you set:
//
//   accelerant::Accelerator accelerator({.mixed_precision = accelerant::Precision::bf16,
//                                        .gradient_accumulation = {.steps = 4},
//                                        .performance = {.allow_tf32 = true}});
//
// Fields that are std::optional fall back on the environment when they are left out, with the
// variable names of Hugging Face Accelerate, so that a launcher can set them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/amp/grad_scaler.h"
#include "accelerant/dist/data_parallel_options.h"
#include "accelerant/watch/process_group_options.h"

namespace accelerant {

class ProfileScope;

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

// Where a training keeps its files, and how it goes on when it was interrupted.
struct ProjectOptions {
  std::string dir = {};          // where the project keeps its files; empty: none
  std::string logging_dir = {};  // where trackers write; empty: the same

  // How many checkpoints save_state() leaves in `<dir>/checkpoints`: when a new one is safe, the
  // oldest are removed. At least 1. Default: all.
  std::optional<int64_t> total_limit = std::nullopt;

  // The number of the first checkpoint; numbering continues after existing checkpoints. Default: 0.
  int64_t iteration = 0;

  // What prepare() resumes from; the training then goes on where it was, with no more code:
  // - "auto": the newest checkpoint of the project, if there is one.
  // - "restart": the same, but only in a process that its launcher has started again (accelerant
  //   launch --max-restarts, torchrun), and only from what this very launch has saved. torchrun
  //   gives launches no name of their own unless told by --rdzv-id: then from the newest.
  // - a path: that checkpoint, or, after such a restart, what this launch has saved since.
  // - "no": nothing.
  // Default: "restart" with `dir`, else "no".
  std::optional<std::string> resume = std::nullopt;

  // SIGTERM and SIGUSR1, which schedulers send before they take a machine away, make the training
  // save its state after the next update and end with exit code 75. Default: where the same command
  // goes on, that is with `dir` and `resume` as "auto" or a path.
  std::optional<bool> save_on_preemption = std::nullopt;
};

// What one step of a schedule stands for.
enum class ScheduleUnit {
  update,           // an optimizer update, whatever the number of processes
  unsharded_batch,  // a batch of one process: num_processes for each update, as in Accelerate
  sample,           // a sample of the data set, all processes together
  call,             // a call of scheduler.step(), whether the optimizer stepped or not
};

// Settings of libtorch and of the process that make training faster. An Accelerator sets them when
// it is made. All but channels_last are settings of the whole process: they hold for everything
// that libtorch does in it, and stay when the Accelerator is gone. A field that is left empty
// leaves what libtorch, the environment or the program has set. What each of them gains is in
// docs/performance.md.
struct PerformanceOptions {
  // float32 matrix products and convolutions on NVIDIA GPUs use TF32: 10 bits of mantissa instead
  // of 23, several times faster. libtorch's own: false for products, true for convolutions.
  std::optional<bool> allow_tf32 = std::nullopt;

  // Matrix products of float16 or bfloat16 on NVIDIA GPUs may add partial sums in 16 bits, which is
  // faster for some shapes. libtorch's own: true.
  std::optional<bool> allow_fp16_reduced_precision_reduction = std::nullopt;
  std::optional<bool> allow_bf16_reduced_precision_reduction = std::nullopt;

  // cuDNN tries its algorithms on each new shape and keeps the fastest: good for shapes that do not
  // change, bad for those that change all the time. The choice, and so the last bits, may differ
  // from run to run. libtorch's own: false.
  std::optional<bool> cudnn_benchmark = std::nullopt;

  // prepare lays the four-dimensional parameters of models, the weights of 2-d convolutions, out
  // with channels last (NHWC); convolutions then compute in that layout, on CPU and GPU, whatever
  // the layout of the batch. Values, shapes and saved files stay the same. Default: false.
  bool channels_last = false;

  // Threads that operators on the CPU use, at least 1. libtorch's own: OMP_NUM_THREADS, else the
  // number of cores; with several processes on a machine, an Accelerator divides the cores among
  // them.
  std::optional<int64_t> cpu_threads = std::nullopt;

  // The cores that this process may run on: a list such as "0-7,16-23", or "auto" for an equal part
  // of those that it may use now, by its number on the machine, with the threads of one core
  // together. All its threads are moved. An empty text: all stay where they are. Default: "auto"
  // where ACCELERATE_CPU_AFFINITY is true, else as it is.
  std::optional<std::string> cpu_affinity = std::nullopt;

  // Memory that is freed stays with the process for the next step instead of going back to the
  // system, which would have to clear new pages for it (glibc's malloc; not if MALLOC_* or
  // GLIBC_TUNABLES say something else). Once on, it cannot be switched off. Default: on for
  // training on the CPU, else off.
  std::optional<bool> keep_freed_memory = std::nullopt;

  // Settings of the allocator of GPU memory, in the form of PYTORCH_ALLOC_CONF:
  // "expandable_segments:True" keeps memory from being cut into pieces when sizes change. Make the
  // Accelerator before anything is on the GPU. Default: what that variable says.
  std::optional<std::string> gpu_allocator = std::nullopt;
};

// Which steps are recorded, as of torch.profiler.schedule: the first `skip_first` are not; then
// each cycle waits for `wait` steps, warms up for `warmup`, and records `active`. Steps are counted
// by ProfileScope::step().
struct ProfileSchedule {
  int64_t skip_first = 0;  // at least 0
  int64_t wait = 0;        // at least 0
  int64_t warmup = 0;      // at least 0; torch's own profiler starts up in it, see with_kernels
  int64_t active = 1;      // at least 1
  int64_t repeat = 0;      // how many cycles; 0: until the end
};

enum class ProfileAction { none, warmup, record, record_and_save };

// What happens in a step of the schedule, from 0.
ProfileAction action_at(const ProfileSchedule& schedule, int64_t step);

// What Accelerator::profile can be told: see profile.h.
struct ProfileOptions {
  // Default: everything is recorded, from the beginning to the end of the scope.
  std::optional<ProfileSchedule> schedule_option = std::nullopt;

  // Called when a recording is complete: at the end of each cycle, or of the scope. Default:
  // nothing.
  std::function<void(const ProfileScope&)> on_trace_ready = {};

  // Where each process writes `profile_<rank>.json` when a recording is complete, in place of the
  // one before. Made where it is not there. Default: no file.
  std::string output_trace_dir = {};

  // The most events of a recording; see TimelineOptions::max_events. Default: one million.
  std::size_t max_events = 1'000'000;

  // Where the main process writes one line at the end that says where the time went. nullptr:
  // nowhere.
  std::FILE* summary = stderr;

  // Records the operators and kernels too, with torch's own profiler (Kineto), which makes every
  // one of them slower. They go to `kernels_<rank>.json` in output_trace_dir, which is needed.
  // Default: false.
  bool with_kernels = false;

  // With with_kernels: shapes of inputs, allocations of memory, and numbers of operations in that
  // file. Default: false.
  bool record_shapes = false;
  bool profile_memory = false;
  bool with_flops = false;
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

  // Whether optimizers of a kind that allows it step in fused kernels: see
  // PrepareOptimizerOptions::fused. Gradients then stay as backward() made them: clip_grad_norm_()
  // over all of them clips inside the step.
  bool fused = true;

  // With several processes: how they are connected, and how models exchange gradients.
  dist::ProcessGroupOptions process_group = {};
  dist::DataParallelOptions data_parallel = {};

  PerformanceOptions performance = {};

  // What profile() does where it is told nothing.
  ProfileOptions profile = {};
};

// What Accelerator::backward can be told.
struct BackwardOptions {
  // Keep the graph for another backward through it. Default: the same as create_graph.
  std::optional<bool> retain_graph = std::nullopt;

  // Record the backward itself, so that gradients can be differentiated.
  bool create_graph = false;

  // Only these tensors get gradients. Empty: all leaves.
  std::vector<at::Tensor> inputs = {};

  // The factor of each element of the loss, for a loss that is not a single number.
  at::Tensor gradient = {};

  // Throw Error if the loss is inf or nan, before anything else. Costs a wait for the device.
  // false: under fp16 the step is skipped; otherwise the parameters become nan, as in PyTorch.
  bool error_if_nonfinite = false;
};

}  // namespace accelerant
