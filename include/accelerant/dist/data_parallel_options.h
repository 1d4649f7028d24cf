// Options of data-parallel training: how processes keep their copies of a model equal
// (DataParallelOptions), how gradients travel between them, unchanged, in 16 bits or as low-rank
// matrices (CommHookOptions), and how processes with different numbers of batches train together
// (JoinOptions).
//
//   dist::CommHookOptions{.hook = dist::CommHook::bf16}
//   dist::CommHookOptions{.hook = dist::CommHook::power_sgd,
//                         .wrapper = dist::CommWrapper::fp16,
//                         .power_sgd = {.matrix_approximation_rank = 2, .start_iteration = 100}}
//
// These are plain values and must be the same on all processes. Meanings and defaults are those of
// Accelerate's DistributedDataParallelKwargs and of torch's ddp_comm_hooks. Whatever the hook, the
// resulting gradients are the mean over the processes, equal on all of them and in the type of the
// parameters. Parameters with sparse gradients need CommHook::no.
#pragma once

#include <cstdint>
#include <optional>

namespace accelerant::dist {

enum class CommHook {
  no,    // in the gradients' own type
  fp16,  // in float16, divided by the number of processes before summing
  bf16,  // in bfloat16, likewise
  // PowerSGD: each sufficiently large gradient is sent as two thin matrices, the others unchanged.
  power_sgd,
  // PowerSGD on whole buckets, each treated as one square matrix: faster and less accurate.
  batched_power_sgd,
};

// The type that a hook works in: gradients are cast, the hook runs, and its result is cast back.
enum class CommWrapper { no, fp16, bf16 };

// For CommHook::power_sgd and CommHook::batched_power_sgd.
struct PowerSgdOptions {
  // The number of columns of the thin matrices. More columns are more accurate and slower; 1 to 4
  // are usual. Default: 1.
  int64_t matrix_approximation_rank = 1;

  // Send gradients uncompressed for this many steps, because an approximation hurts the first ones
  // most. A step is a backward that exchanges gradients. At least 2 with error feedback or a warm
  // start, since buckets are rebuilt after the first step. Default: 1000.
  int64_t start_iteration = 1000;

  // A gradient of n rows and m columns is compressed only if n * m > (n + m) * rank * this.
  // Default: 2.
  double min_compression_rate = 2;

  // Add what the approximation left out of a gradient to the next one. Needed to converge as well
  // as without compression; takes as much memory as the gradients. Default: true.
  bool use_error_feedback = true;

  // Start each approximation from the previous one. Better and faster; takes the memory of the thin
  // matrices. Default: true.
  bool warm_start = true;

  // Added to the length of each column before normalising it. Not needed for gradients that are all
  // 0: they are detected and stay 0. Default: 0.
  double orthogonalization_epsilon = 0;

  // Seed of the random initial matrices; 0 to 2^32 - 1, the same on all processes. Default: 0.
  int64_t random_seed = 0;

  // Compress gradients of the same shape in one operation, at the cost of a copy. Worth trying on a
  // GPU with many equal layers. Default: false.
  bool batch_tensors_with_same_shape = false;
};

struct CommHookOptions {
  // How gradients are compressed. Default: not at all.
  CommHook hook = CommHook::no;

  // The type that the hook works in; an Error without a hook. fp16 around power_sgd sends the thin
  // matrices in 16 bits. Default: the gradients' own type.
  CommWrapper wrapper = CommWrapper::no;

  // Options of power_sgd and batched_power_sgd; other hooks ignore them.
  PowerSgdOptions power_sgd = {};
};

struct DataParallelOptions {
  // Copy the buffers of rank 0 (for example, running means of a batch norm) to all processes before
  // a forward. This happens at the first forward with gradients after a synchronised one. Forwards
  // without gradients exchange nothing, so that a process may evaluate alone. Each process then
  // evaluates with its own buffers, which may differ by the last batch; dist::broadcast(world,
  // model.buffers()) makes them equal first. Default: true.
  bool broadcast_buffers = true;

  // Find out in every iteration which parameters the outputs depend on, and do not wait for
  // gradients of the others. Needed if some forwards, or the loss, leave out parts of the model;
  // costs a walk over the graph and a small exchange per iteration. Default: false.
  bool find_unused_parameters = false;

  // Promise that every iteration uses the same parameters equally often. The first iteration then
  // determines them. This allows unused parameters, and parameters used in several nested backwards
  // (activation checkpoints), without a search in each iteration. Default: false.
  bool static_graph = false;

  // Make the gradients views of the buffers that are exchanged, which saves a copy of all gradients
  // in memory. They must then not be replaced or detached; zero_grad() is fine. Default: false.
  bool gradient_as_bucket_view = false;

  // Copy the gradients of a bucket into its buffer all at once when the last of them is ready,
  // instead of one by one: two kernels per bucket instead of one or two per parameter. For models
  // with many small parameters on GPUs. Needs libtorch 2.12. Default: false.
  bool batched_grad_copy = false;

  // Exchange gradients in buckets of about this size, in MiB: small ones start earlier, large ones
  // have less overhead. If set, the first bucket has this size too. Default: 25, with a first
  // bucket of 1 MiB.
  std::optional<double> bucket_cap_mb = std::nullopt;

  // How gradients travel. Default: unchanged.
  CommHookOptions comm_hook = {};
};

// Options of Accelerator::join_uneven_inputs.
struct JoinOptions {
  // Divide the sum of gradients by the number of all processes even after some have ended: a late
  // batch then weighs as much as any other. If false, divide by the number of processes that still
  // have inputs. Default: true.
  bool divide_by_initial_world_size = true;

  // Instead of continuing, stop training on all processes with an Error as soon as one has no more
  // inputs. Default: false.
  bool throw_on_early_termination = false;
};

}  // namespace accelerant::dist
