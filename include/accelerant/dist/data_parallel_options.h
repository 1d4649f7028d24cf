// Options of data-parallel training: how processes keep their copies of a model equal
// (DataParallelOptions), how gradients travel between them, as they are, in 16 bits, or as low-rank
// matrices (CommHookOptions), and how processes with different numbers of batches train together
// (JoinOptions).
//
//   dist::CommHookOptions{.hook = dist::CommHook::bf16}
//   dist::CommHookOptions{.hook = dist::CommHook::power_sgd,
//                         .wrapper = dist::CommWrapper::fp16,
//                         .power_sgd = {.matrix_approximation_rank = 2, .start_iteration = 100}}
//
// Plain values, and the same on all processes. Meaning and defaults are those of Accelerate's
// DistributedDataParallelKwargs and of torch's ddp_comm_hooks. Whatever the hook, the gradients
// that come out are the mean over the processes, equal on all of them and in the parameters' own
// type. Parameters with sparse gradients need CommHook::no.
#pragma once

#include <cstdint>
#include <optional>

namespace accelerant::dist {

enum class CommHook {
  no,    // in the gradients' own type
  fp16,  // in float16, divided by the number of processes before they are summed
  bf16,  // in bfloat16, likewise
  // PowerSGD: each gradient that is large enough is sent as two thin matrices, the others as they
  // are.
  power_sgd,
  // PowerSGD on whole buckets, each seen as one square matrix: faster, and less exact.
  batched_power_sgd,
};

// What a hook works in: the gradients are cast, the hook runs, its result is cast back.
enum class CommWrapper { no, fp16, bf16 };

// For CommHook::power_sgd and CommHook::batched_power_sgd.
struct PowerSgdOptions {
  // The number of columns of the thin matrices. More is more exact, and slower. Default: 1; usual:
  // 1 to 4.
  int64_t matrix_approximation_rank = 1;

  // Gradients are sent whole until this many steps have been made, as the first ones suffer most
  // from an approximation. A step is a backward that exchanges gradients. At least 2 with error
  // feedback or a warm start, since buckets are laid out anew after the first step. Default: 1000.
  int64_t start_iteration = 1000;

  // A gradient of n rows and m columns is compressed only if n * m > (n + m) * rank * this.
  // Default: 2.
  double min_compression_rate = 2;

  // Add what the approximation left out of a gradient to the next one. Needed to converge as well
  // as without compression; costs memory of the size of the gradients. Default: true.
  bool use_error_feedback = true;

  // Start each approximation from the one before. Better and faster; costs the memory of the thin
  // matrices. Default: true.
  bool warm_start = true;

  // Added to the length of each column that is normalised. Not needed against gradients that are 0
  // throughout, which are seen and kept 0. Default: 0.
  double orthogonalization_epsilon = 0;

  // Of the random matrices to start from; 0 to 2^32 - 1, the same on all processes. Default: 0.
  int64_t random_seed = 0;

  // Compress gradients of the same shape in one operation, at the price of a copy. Worth trying on
  // a GPU with many equal layers. Default: false.
  bool batch_tensors_with_same_shape = false;
};

struct CommHookOptions {
  CommHook hook = CommHook::no;

  // Around the hook; an Error without one. fp16 around power_sgd sends the thin matrices in 16
  // bits.
  CommWrapper wrapper = CommWrapper::no;

  PowerSgdOptions power_sgd = {};
};

struct DataParallelOptions {
  // Before a forward, give the buffers of rank 0 (running means of a batch norm, say) to all
  // processes. Happens at the first forward with gradients after one that synchronised. Forwards
  // without gradients exchange nothing, so that a process may evaluate alone; each evaluates with
  // its own buffers, which may differ by the last batch. dist::broadcast(world, model.buffers())
  // makes them equal before. Default: true.
  bool broadcast_buffers = true;

  // Look in every iteration which parameters the outputs depend on, and do not wait for gradients
  // of the others. Needed if parts of the model are left out of some forwards or of the loss; costs
  // a walk over the graph and a small exchange in each iteration. Default: false.
  bool find_unused_parameters = false;

  // Promise that every iteration uses the same parameters equally often. They are then found out in
  // the first iteration, which allows unused parameters, and parameters used in several nested
  // backwards (activation checkpoints), without a search in each. Default: false.
  bool static_graph = false;

  // Let the gradients be parts of the buffers that are exchanged, which saves a copy of all
  // gradients in memory. They must then not be replaced or detached; zero_grad() is fine. Default:
  // false.
  bool gradient_as_bucket_view = false;

  // Copy the gradients of a group into its buffer all at once when the last of them is there,
  // rather than each when it comes: two kernels for a group instead of one or two for each
  // parameter. For models of many small parameters on GPUs. Needs libtorch 2.12. Default: false.
  bool batched_grad_copy = false;

  // Gradients are exchanged in groups of about this size, in MiB: small ones start earlier, large
  // ones have less overhead. Default: 25, with a first group of 1 MiB. If it is set, the first
  // group has this size too.
  std::optional<double> bucket_cap_mb = std::nullopt;

  // How gradients travel. Default: as they are.
  CommHookOptions comm_hook = {};
};

// Of Accelerator::join_uneven_inputs.
struct JoinOptions {
  // Divide the sum of gradients by the number of all processes, also when some have ended: a late
  // batch then weighs as much as any other. If false, divide by the number of those still at it.
  // Default: true.
  bool divide_by_initial_world_size = true;

  // Instead of going on, end the training of all processes with an Error as soon as one has no more
  // inputs. Default: false.
  bool throw_on_early_termination = false;
};

}  // namespace accelerant::dist
