// The options of an Accelerator: AcceleratorOptions with its parts, and the options of backward()
// and profile(). All fields have defaults; name the ones you set:
//
//   accelerant::Accelerator accelerator({.mixed_precision = accelerant::Precision::bf16,
//                                        .gradient_accumulation = {.steps = 4},
//                                        .performance = {.allow_tf32 = true}});
//
// A std::optional field that you leave out falls back to the environment. The variables have the
// names that Hugging Face Accelerate uses, so that a launcher can set them.
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
  no,    // computes in the type of the weights, usually float32
  fp16,  // autocast to float16 with loss scaling, on CPU too
  bf16,  // autocast to bfloat16; needs no loss scaling
};

// What an optimizer does with gradients that are inf or nan: see AcceleratorOptions::nonfinite and
// docs/mixed_precision.md.
enum class Nonfinite {
  step,  // updates the parameters all the same, as torch's optimizers do
  skip,  // leaves the update out, as a GradScaler does
  stop,  // leaves it out and throws Error, which names the parameters
};

struct GradientAccumulationOptions {
  // Micro-batches in a window, that is, between two optimizer updates. At least 1. Default:
  // ACCELERATE_GRADIENT_ACCUMULATION_STEPS, else 1.
  std::optional<int64_t> steps = std::nullopt;

  // The last batch of the loader always ends a window, however short; the gradients are then the
  // mean over the micro-batches it has. false: windows continue into the next epoch.
  bool sync_with_dataloader = true;

  // Exchange gradients between processes at every micro-batch. This costs time and may save memory.
  // The updates stay the same.
  bool sync_each_batch = false;
};

// How prepare() changes loaders. An empty field keeps the loader's own option.
struct DataLoaderOptions {
  // A batch of the loader is the batch of all processes together, and each process takes its part.
  // false: each process takes whole batches of that size.
  bool split_batches = false;

  // The main process reads for all processes and hands out their parts. Default: only if the data
  // set cannot be read by every process. Has no effect with one process.
  std::optional<bool> dispatch_batches = std::nullopt;

  // Every process gets the same number of batches of the same size. The last batches are filled up
  // with samples from the start of the epoch.
  bool even_batches = true;

  // The seed for the order of samples.
  std::optional<uint64_t> seed = std::nullopt;

  // Copy batches to the device without blocking the host.
  bool non_blocking = true;

  // Worker threads, and the number of batches that each of them prepares ahead.
  std::optional<int64_t> workers = std::nullopt;
  std::optional<int64_t> prefetch = std::nullopt;
};

// Autocast inside the models' forward and in Accelerator::autocast().
struct AutocastSettings {
  bool enabled = true;

  // Whether 16-bit copies of weights are kept within one forward. Default: torch's, true.
  std::optional<bool> cache_enabled = std::nullopt;
};

// Where a training run keeps its files, and how it continues after an interruption.
struct ProjectOptions {
  // Folder for the project's files; empty: no files. One run at a time can train in it: once an
  // optimizer is prepared, `<dir>/accelerant.lock` names the run's process, and another run gets an
  // Error.
  std::string dir = {};

  std::string logging_dir = {};  // folder for trackers; empty: the same as dir

  // How many checkpoints save_state() keeps in `<dir>/checkpoints`. It removes the oldest ones once
  // the new one is safely written. At least 1. Default: all.
  std::optional<int64_t> total_limit = std::nullopt;

  // The number of the first checkpoint; numbering continues after existing checkpoints. Default: 0.
  int64_t iteration = 0;

  // What prepare() resumes from. The training then continues where it was, without further code.
  //  - "auto": the newest checkpoint of the project, if there is one.
  //  - "restart": the same, but only in a process that its launcher has restarted (accelerant
  //    launch --max-restarts, torchrun), and only from checkpoints of this launch. torchrun gives
  //    all launches the same name unless you pass --rdzv-id; prepare() then takes the newest
  //    checkpoint.
  //  - a path: that checkpoint or, after such a restart, what this launch has saved since.
  //  - "no": nothing.
  // Default: "restart" if `dir` is set, else "no".
  std::optional<std::string> resume = std::nullopt;

  // On SIGTERM or SIGUSR1, which schedulers send before they take a machine away, save the state
  // after the next update and exit with code 75. Default: true if running the same command again
  // would resume, that is, if `dir` is set and `resume` is "auto" or a path; else false.
  std::optional<bool> save_on_preemption = std::nullopt;
};

// What advances a schedule by one step.
enum class ScheduleUnit {
  update,           // an optimizer update, for any number of processes
  unsharded_batch,  // a batch of one process: num_processes for each update, as in Accelerate
  sample,           // a sample of the data set, all processes together
  call,             // a call of scheduler.step(), whether the optimizer stepped or not
};

// Settings of libtorch and of the process that make training faster. The Accelerator applies them
// in its constructor. All except channels_last are global to the process: they affect everything
// that libtorch does in it, and they stay in effect after the Accelerator is destroyed. An empty
// field keeps what libtorch, the environment or the program has set. docs/performance.md shows what
// each of them gains.
struct PerformanceOptions {
  // Use TF32 for float32 matrix products and convolutions on NVIDIA GPUs: 10 bits of mantissa
  // instead of 23, several times faster. libtorch's default: false for products, true for
  // convolutions.
  std::optional<bool> allow_tf32 = std::nullopt;

  // Let matrix products of float16 or bfloat16 on NVIDIA GPUs add partial sums in 16 bits, which is
  // faster for some shapes. libtorch's default: true.
  std::optional<bool> allow_fp16_reduced_precision_reduction = std::nullopt;
  std::optional<bool> allow_bf16_reduced_precision_reduction = std::nullopt;

  // Let cuDNN try its algorithms on each new shape and keep the fastest. Good if shapes stay the
  // same, bad if they change all the time. The choice, and with it the last bits of results, may
  // differ from run to run. libtorch's default: false.
  std::optional<bool> cudnn_benchmark = std::nullopt;

  // prepare() stores the four-dimensional parameters of models (the weights of 2-d convolutions)
  // with channels last (NHWC). Convolutions then compute in that layout, on CPU and GPU, whatever
  // the layout of the batch. Values, shapes and saved files stay the same. Default: false.
  bool channels_last = false;

  // Threads for operators on the CPU, at least 1. Default: OMP_NUM_THREADS, else the number of
  // cores. With several processes on a machine, the Accelerator divides the cores among them.
  std::optional<int64_t> cpu_threads = std::nullopt;

  // The cores that this process may run on: a list such as "0-7,16-23", or "auto". "auto" divides
  // the cores that the process may use now equally among the processes of the machine, and keeps
  // the hardware threads of a core together. All threads of the process are moved. An empty string
  // moves nothing. Default: "auto" if ACCELERATE_CPU_AFFINITY is true, else empty.
  std::optional<std::string> cpu_affinity = std::nullopt;

  // Keep freed memory in the process for the next step instead of returning it to the system, which
  // would have to clear new pages. Works with glibc's malloc, unless MALLOC_* or GLIBC_TUNABLES set
  // something else. Once on, it cannot be switched off. Default: on if the device is the CPU, else
  // off.
  std::optional<bool> keep_freed_memory = std::nullopt;

  // Settings of the GPU memory allocator, in the format of PYTORCH_ALLOC_CONF.
  // "expandable_segments:True" avoids fragmentation when sizes change. Create the Accelerator
  // before anything is on the GPU. Default: the value of that variable.
  std::optional<std::string> gpu_allocator = std::nullopt;
};

// Which steps to record, as in torch.profiler.schedule. Skips the first `skip_first` steps; each
// cycle then waits for `wait` steps, warms up for `warmup` steps, and records `active` steps.
// ProfileScope::step() counts the steps.
struct ProfileSchedule {
  int64_t skip_first = 0;  // at least 0
  int64_t wait = 0;        // at least 0
  int64_t warmup = 0;      // at least 0; torch's own profiler starts here, see with_kernels
  int64_t active = 1;      // at least 1
  int64_t repeat = 0;      // number of cycles; 0: until the end
};

enum class ProfileAction { none, warmup, record, record_and_save };

// What happens in step `step` of the schedule. Steps count from 0.
ProfileAction action_at(const ProfileSchedule& schedule, int64_t step);

// The options of Accelerator::profile: see profile.h.
struct ProfileOptions {
  // Which steps to record. Default: everything, from the beginning to the end of the scope.
  std::optional<ProfileSchedule> schedule_option = std::nullopt;

  // Called when a recording is complete: at the end of each cycle, or of the scope. Default: none.
  std::function<void(const ProfileScope&)> on_trace_ready = {};

  // The folder in which each process writes `profile_<rank>.json` when a recording is complete. A
  // new recording replaces the file. Created if missing. Default: no file.
  std::string output_trace_dir = {};

  // The maximum number of events in a recording; see TimelineOptions::max_events. Default: one
  // million.
  std::size_t max_events = 1'000'000;

  // Where the main process writes, at the end, one line that says where the time went. nullptr:
  // nowhere.
  std::FILE* summary = stderr;

  // Also record operators and kernels, with torch's own profiler (Kineto), which slows each of them
  // down. They are written to `kernels_<rank>.json` in output_trace_dir, which must be set.
  // Default: false.
  bool with_kernels = false;

  // With with_kernels: also record the shapes of inputs, memory allocations, and numbers of
  // floating-point operations in that file. Default: false.
  bool record_shapes = false;
  bool profile_memory = false;
  bool with_flops = false;
};

// Warnings about mistakes that would otherwise train wrongly without a word. Each is logged once by
// an Accelerator, says what to write instead, and costs nothing measurable in a step. All are on;
// set one to false if the program means it that way.
struct WarningOptions {
  // Under mixed precision: gradients came from the original module, which runs in full precision.
  bool bypassed_model = true;

  // Gradients came from loss.backward(), under fp16 or with accumulation; or gradients were cleared
  // or changed in the middle of a window by something other than the prepared optimizer.
  bool bypassed_backward = true;

  // Parameters changed between two backwards, and the prepared optimizer did not step.
  bool bypassed_optimizer = true;

  // The first steps found no gradients.
  bool missing_gradients = true;

  // backward() ran again and again, and no optimizer was asked to step.
  bool missing_step = true;

  // The loss is inf or nan, and `nonfinite` is step. On a GPU this may be told up to 64 steps late.
  bool nonfinite_loss = true;

  // The last 20 steps were all skipped, since gradients were inf or nan.
  bool repeated_skips = true;

  // A loop over a prepared loader has no batches.
  bool empty_loop = true;

  // A schedule goes on from a checkpoint that was saved with another one, for example with other
  // total_steps.
  bool changed_schedule = true;

  // mixed_precision asks for a type that this CPU has no instructions for.
  bool slow_precision = true;

  // Under fp16: something other than the Accelerator made gradients much smaller, most likely by
  // clipping them, while they carried the loss scale. Looked for in the first three updates.
  bool scaled_gradients = true;

  // backward() added to gradients that a step had used, since zero_grad() was not called; or
  // gradients were clipped after the step. Both are told the second time.
  bool used_gradients = true;

  // A schedule was never stepped although a second epoch began (one of more than 1000 steps: in 100
  // updates), or was stepped twice for an update.
  bool schedule_steps = true;

  // A model has parameters with gradients that no prepared optimizer has, and an optimizer has some
  // without gradients that are in no prepared model: a layer was replaced after the optimizer was
  // made.
  bool replaced_parameters = true;

  // With several processes: backward() ran without a loop over a prepared loader, so that all of
  // them may train with the same samples.
  bool undivided_data = true;

  // The training was resumed from a checkpoint after its last epoch, and nothing was left to do.
  // Told when the Accelerator ends.
  bool finished_training = true;

  // The project has checkpoints of an earlier training, and this one does not resume from them.
  bool unused_checkpoints = true;

  bool operator==(const WarningOptions&) const = default;

  // All of them switched off.
  static WarningOptions none() {
    return {false, false, false, false, false, false, false, false, false,
            false, false, false, false, false, false, false, false};
  }
};

// What moves from the memory of the device to that of the host, so that larger models can be
// trained. Results stay the same bits on the CPU, where host and device have the same memory; on a
// GPU the update is computed on the host, which rounds differently. Steps that move data run
// eagerly in capture(). docs/big_models.md says what each costs and gains.
struct OffloadSettings {
  // Page the large parameters of prepared models (more than 100,000 elements): they are in host
  // memory and come to the device for the operators that use them. Training them needs `optimizer`.
  // A model that fits into `budget` as a whole is an ordinary one, so that capture() works too.
  // Code that reads their data_ptr() fails while they are absent. When the Accelerator ends, they
  // are ordinary parameters in host memory. With several processes, and for TorchScript, an Error.
  // Default: false.
  bool parameters = false;

  // Keep the states of optimizers, and float32 copies of parameters (`master_weights`), in host
  // memory, and compute updates there. Gradients go to host memory as soon as they are final, while
  // backward computes others, and grad() is there then; with several processes they go after their
  // exchange. New values come back while later ones are computed. Each step waits for the device.
  // The host has the values that were sent: change parameters by operators under NoGradGuard, which
  // are noticed, not through parameter.data() or addresses, whose changes the next step undoes.
  // The optimizer must be one that fused steps support. Default: false.
  bool optimizer = false;

  // Keep the inputs of nn::checkpoint(), which backward needs, in host memory between forward and
  // backward. Each comes back while backward works on the block before. Has no effect on the CPU.
  // Default: false.
  bool activations = false;

  // With `parameters`: how much memory of the device those of each model may take, in bytes.
  // Default: room for three of the largest units (a unit is a layer or so): the one in use, the one
  // before it, and the next one.
  std::optional<uint64_t> budget = std::nullopt;

  // With `optimizer`: begin the update of each parameter as soon as its gradient is on the host, in
  // a thread beside backward, instead of in step(). Parameters have their new values when backward()
  // returns. It is a promise that step() follows each backward that completes a window, with the
  // gradients and rates as they are then: what is updated cannot be taken back, so anything else is
  // an Error from there on. Clipping, loss
  // scaling and `nonfinite` other than step need all gradients first and are an Error. Windows
  // whose gradients need a factor at their end (a short last window of a stream, losses by items),
  // and gradients that processes exchange, are updated in step() all the same. So are those that
  // the window of other models reaches, as the generator's backward reaches the discriminator; with
  // several optimizers, name the models in accumulate(), since a backward outside every window, or
  // in a window that names none, concerns all of them. Default: false.
  bool update_in_backward = false;
};

struct AcceleratorOptions {
  // Move models and batches to the device. false: the program places them itself.
  bool device_placement = true;

  // Use the CPU even if there is a GPU. Default: ACCELERATE_USE_CPU, else false.
  std::optional<bool> cpu = std::nullopt;

  // The device to use. Default: ACCELERATE_TORCH_DEVICE, else the GPU with the index of the process
  // on its machine (with one process, the current GPU), else the CPU.
  std::optional<c10::Device> device = std::nullopt;

  // The type that models compute in. Default: ACCELERATE_MIXED_PRECISION (no, fp16 or bf16), else
  // no.
  std::optional<Precision> mixed_precision = std::nullopt;

  GradientAccumulationOptions gradient_accumulation = {};
  DataLoaderOptions data_loader = {};

  // Loss scaling for fp16. The Accelerator sets `device`. `enabled = false` switches scaling off;
  // true has no effect with other precisions.
  GradScalerOptions scaler = {};

  AutocastSettings autocast = {};
  ProjectOptions project = {};
  ScheduleUnit schedule_unit = ScheduleUnit::update;

  // Let optimizers whose kind supports it step in fused kernels: see
  // PrepareOptimizerOptions::fused. Gradients then stay as backward() made them, and
  // clip_grad_norm_() over all of them clips inside the step.
  bool fused = true;

  // Keep a float32 copy of 16-bit parameters, and float32 moments: see
  // FusedStepOptions::master_weights. Only for optimizers that fused steps support; others are an
  // Error. PrepareModelOptions::master_weights is the opposite: it makes the parameters themselves
  // float32. Under fp16, trainable float16 parameters need that one; this one is for bfloat16
  // parameters, or without a scaler. Default: false, as in PyTorch.
  bool master_weights = false;

  // What is kept in host memory. Default: nothing.
  OffloadSettings offload = {};

  // What a step does if a gradient of its optimizer is inf or nan, in any process. Only gradients
  // count, not the loss.
  //  - step: the parameters become nan and stay so. An Error under fp16 with loss scaling, where
  //    overflows are normal.
  //  - skip: parameters, optimizer state and step count stay as they are, in all processes;
  //    schedules wait; StepResult::skipped() is true. Like a GradScaler whose scale is always 1,
  //    and scaler() counts the skips.
  //  - stop: the same, and step() throws Error, in all processes in the same step, with the names
  //    of the parameters. On a GPU it does so up to 4 steps later, without waiting for the device;
  //    until then nothing is updated. A program may catch it and go on or save. Under fp16, steps
  //    are skipped until the loss scale is down to 1 or scaler.min_scale; the next overflow stops.
  // Clipping and loss scaling look at the gradients anyway; without them, skip and stop cost one
  // more reading of the gradients in each step. Processes exchange one flag per step. On a GPU, an
  // optimizer that fused steps do not support waits for the device. Steps with closures need
  // `step`. Default: skip under fp16 with loss scaling, else step, as in PyTorch.
  std::optional<Nonfinite> nonfinite = std::nullopt;

  // With several processes: how they connect, and how models exchange gradients.
  dist::ProcessGroupOptions process_group = {};
  dist::DataParallelOptions data_parallel = {};

  PerformanceOptions performance = {};

  // The options of profile() when it is called without any.
  ProfileOptions profile = {};

  WarningOptions warnings = {};
};

// The options of Accelerator::backward.
struct BackwardOptions {
  // Keep the graph for another backward through it. Default: the value of create_graph.
  std::optional<bool> retain_graph = std::nullopt;

  // Record the backward itself, so that gradients can be differentiated again.
  bool create_graph = false;

  // Compute gradients only for these tensors. Empty: for all leaves.
  std::vector<at::Tensor> inputs = {};

  // The weight of each element of the loss, for a loss that is not a single number.
  at::Tensor gradient = {};

  // Throw Error if the loss is inf or nan, before anything else happens. Waits for the device.
  // false: AcceleratorOptions::nonfinite decides what the step does with the gradients.
  bool error_if_nonfinite = false;
};

}  // namespace accelerant
