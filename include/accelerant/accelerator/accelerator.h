// The Accelerator adds mixed precision, gradient accumulation, clipping, schedules and device
// placement to a libtorch training loop. Only a few lines of the loop change.
//
//   accelerant::Accelerator accelerator({.mixed_precision = accelerant::Precision::fp16,
//                                        .gradient_accumulation = {.steps = 2}});
//   auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, adamw, batches, cosine);
//
//   for (auto epoch : accelerator.epochs(10)) {
//     for (auto&& [data, target] : loader) {
//       auto window = accelerator.accumulate(model);
//       accelerator.backward(torch::nll_loss(model(data), target));
//       accelerator.clip_grad_norm_(model, 1.0);
//       optimizer.step();
//       scheduler.step();
//       optimizer.zero_grad();
//     }
//   }
//
// Names and meanings are those of Hugging Face Accelerate; docs/parity.md lists the differences.
//
// Use an Accelerator, and everything it prepared, from one thread at a time. It must outlive the
// use of what it prepared: a later step or forward is an Error. prepare() borrows an object that it
// gets by name, so the object must live as long as any of its handles. The Accelerator forgets a
// prepared object together with the last handle, so all of them may be local to a function. Two
// Accelerators in one process are independent, except for the settings of the process: see
// PerformanceOptions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <any>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "accelerant/accelerator/capture.h"
#include "accelerant/accelerator/checkpointing.h"
#include "accelerant/accelerator/detail/prepare_traits.h"
#include "accelerant/accelerator/loop.h"
#include "accelerant/accelerator/model.h"
#include "accelerant/accelerator/optimizer.h"
#include "accelerant/accelerator/options.h"
#include "accelerant/accelerator/profile.h"
#include "accelerant/amp/autocast.h"
#include "accelerant/amp/grad_scaler.h"
#include "accelerant/checkpoint/models.h"
#include "accelerant/data/loader.h"
#include "accelerant/dist/collectives.h"
#include "accelerant/dist/data_parallel_options.h"
#include "accelerant/dist/local_sgd.h"
#include "accelerant/dist/process_control.h"
#include "accelerant/dist/world.h"
#include "accelerant/optim/clip_grad.h"
#include "accelerant/watch/environment.h"

namespace accelerant {

class Accelerator;

namespace detail {
Core& core_of(const Accelerator& accelerator);  // for tests of what is not public
}

// A prepared loader has the type of the loader it was made from.
template <class Batch>
using Loader = data::Loader<Batch>;

class Accelerator {
 public:
  // Throws Error if an option, or the environment variable that replaces it, is out of range or
  // cannot be satisfied.
  explicit Accelerator(  // to see which option the compiler refuses, write AcceleratorOptions{...}
      const AcceleratorOptions& options = {});
  ~Accelerator();
  Accelerator(Accelerator&&) noexcept;  // the source may then only be destroyed or assigned to
  Accelerator& operator=(Accelerator&&) noexcept;

  // --- Preparation -------------------------------------------------------------------------------

  // Takes any number of models, optimizers, loaders and schedules, in any order, and returns the
  // prepared ones in the same order: a single one as is, several as a tuple. An object that is
  // already prepared comes back unchanged. Preparing an original twice returns the same prepared
  // object.
  template <class... Objects>
  auto prepare(Objects&&... objects);

  // Moves the module to the device and runs its forward in the Accelerator's precision. Register
  // all parameters before this call: the model does not see later ones.
  template <class M>
  auto prepare_model(M&& model, const PrepareModelOptions& options = {});

  // LBFGS under fp16, or if `nonfinite` is skip or stop, is an Error: it evaluates the loss several
  // times in one step.
  Optimizer prepare_optimizer(torch::optim::Optimizer& optimizer,
                              const PrepareOptimizerOptions& options = {});
  Optimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                              const PrepareOptimizerOptions& options = {});
  Optimizer prepare_optimizer(const Optimizer& optimizer, const PrepareOptimizerOptions& = {});

  // The prepared loader delivers its batches on the device and tells the Accelerator when an epoch
  // ends. A torch::data loader is treated as a stream of batches.
  template <class L>
  auto prepare_data_loader(L&& loader);

  // A schedule follows the optimizer it was made for. A schedule of torch::optim does not expose
  // its optimizer, so it follows all prepared optimizers.
  Scheduler prepare_scheduler(optim::LrScheduler& scheduler);
  Scheduler prepare_scheduler(optim::LrScheduler&& scheduler);
  Scheduler prepare_scheduler(optim::ReduceLrOnPlateau& scheduler);
  Scheduler prepare_scheduler(optim::ReduceLrOnPlateau&& scheduler);
  Scheduler prepare_scheduler(torch::optim::LRScheduler& scheduler);
  Scheduler prepare_scheduler(const Scheduler& scheduler);

  // --- The loop ----------------------------------------------------------------------------------

  // The range 0, 1, ..., count - 1. After a state was loaded, only the epochs that remain: call
  // epochs() in the same order as the run that saved.
  Epochs epochs(int64_t count);

  // Runs autograd on the loss, which is scaled under fp16. Inside accumulate(), the gradients of a
  // window add up to the mean over its micro-steps.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  // For losses that are sums over items, such as tokens. The gradients of a window add up to the
  // sum of its losses divided by the number of its items, however these are spread over the
  // micro-steps. If the number is on the device, the host does not wait for it. The division
  // happens at the end of the window, when the gradients are clipped, unscaled or used by a step.
  // Use only one form of backward in a window.
  void backward(const at::Tensor& loss_sum, int64_t num_items, const BackwardOptions& options = {});
  void backward(const at::Tensor& loss_sum, const at::Tensor& num_items,
                const BackwardOptions& options = {});

  // Always a compile-time error: the second argument is neither a number of items nor, as in
  // libtorch, `gradient` or `retain_graph`. The message says what to write instead.
  template <class T>
  requires std::same_as<T, bool> || std::floating_point<T>
  void backward(const at::Tensor&, T, const BackwardOptions& = {}) {
    static_assert(!std::is_arithmetic_v<T>,
                  "Accelerator::backward: to keep the graph write backward(loss, {.retain_graph = "
                  "true}); a number of items must be an integer or a tensor");
  }

  // One micro-step of a window over these models, or over all models if none are given. Calls with
  // the same models share a window; calls with different models have separate windows.
  template <class... Models>
  AccumulateScope accumulate(const Models&... models) {
    static_assert((std::derived_from<Models, ModelBase> && ...),
                  "Accelerator::accumulate takes prepared models");
    return open_window({&models...});
  }

  // Clip gradients like the free functions, after undoing the loss scale of the optimizers that own
  // the parameters. clip_grad_norm_ returns the norm before clipping, on the device. In the middle
  // of a window these functions do nothing, and clip_grad_norm_ returns nullopt. If the model's
  // optimizer steps in fused kernels, the norm is clipped inside the step and the gradients keep
  // their values: see AcceleratorOptions::fused.
  std::optional<at::Tensor> clip_grad_norm_(const ModelBase& model, double max_norm,
                                            const NormOptions& options = {});
  std::optional<at::Tensor> clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                                            double max_norm, const NormOptions& options = {});
  void clip_grad_value_(const ModelBase& model, double clip_value);
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  // Undoes the loss scale in the gradients of one optimizer, or of all, so that you can inspect
  // them. Takes effect once per window; further calls, and calls in the middle of a window, do
  // nothing.
  void unscale_gradients(const Optimizer& optimizer);
  void unscale_gradients();

  // Runs code outside a model's forward in the Accelerator's precision. Without mixed precision the
  // scope does nothing.
  AutocastScope autocast() const;
  AutocastScope autocast(const AutocastSettings& settings) const;

  // Captures the whole step as a CUDA graph and replays it in each call, where possible: see
  // capture.h.
  template <class F>
  CapturedStep<std::decay_t<F>> capture(F&& step, const CaptureOptions& options = {}) {
    return {core_, std::forward<F>(step), options};
  }

  // Discards accumulated gradients: ends all incomplete windows and clears the gradients of all
  // prepared optimizers. Use it to continue after an exception in the middle of a window.
  void drop_gradients();

  // Whether the latest micro-step completed its window; true before the first. A value that you set
  // applies to optimizers outside windows.
  bool sync_gradients() const;
  void set_sync_gradients(bool sync);

  int64_t gradient_accumulation_steps() const;
  void set_gradient_accumulation_steps(int64_t steps);

  // Whether the last executed step of any prepared optimizer was skipped. May wait for the device.
  bool optimizer_step_was_skipped() const;

  // Micro-steps in the latest window so far; 0 once it is complete and its scope has ended.
  int64_t step() const;

  // Optimizer updates in one epoch of the loader, prepared or not. Use it as the length of a
  // schedule. Throws Error for a stream of unknown length.
  template <class Batch>
  int64_t updates_per_epoch(const data::Loader<Batch>& loader) const {
    return updates_in(loader.placed(placement()).length());
  }

  // --- Between processes -------------------------------------------------------------------------
  // All processes must call these functions in the same order. See accelerant/dist for details.

  template <NestedTensors T>
  T gather(const T& data) const {
    return dist::gather(world(), data);
  }
  // Returns each sample once: drops the rows that only pad the current batch of the innermost loop.
  template <NestedTensors T>
  T gather_for_metrics(const T& data) const {
    return dist::gather_for_metrics(world(), current_rows(), data);
  }
  template <NestedTensors T>
  T reduce(const T& data, const dist::ReduceOptions& options = {}) const {
    return dist::reduce(world(), data, options);
  }
  template <NestedTensors T>
  T pad_across_processes(const T& data, const dist::PadAcrossOptions& options = {}) const {
    return dist::pad_across_processes(world(), data, options);
  }
  void wait_for_everyone() const { dist::wait_for_everyone(world()); }
  template <class F>
  auto main_process_first(F&& f) const {
    return dist::main_process_first(world(), f);
  }
  template <class F>
  auto local_main_process_first(F&& f) const {
    return dist::local_main_process_first(world(), f);
  }
  // The rows of the current batch, for dist::gather_objects_for_metrics.
  dist::BatchRows current_rows() const;

  // A flag that any process may raise and every process sees, for example to stop early.
  // check_trigger() lowers it.
  void set_trigger();
  bool check_trigger();

  // --- Exchange of gradients ---------------------------------------------------------------------
  // accumulate() and backward() exchange gradients on their own; use these functions for other
  // kinds of loops.

  // While the scope lives, the model's gradients are not exchanged between processes.
  NoSyncScope no_sync(const ModelBase& model);

  // Makes the next backward exchange the model's gradients even if the forwards ran inside
  // no_sync() or in the middle of a window.
  void trigger_sync_in_backward(const ModelBase& model);

  // For processes with different numbers of batches (data_loader.even_batches = false). Runs the
  // loop of this process, then takes part in the exchanges of the other processes, with zero
  // gradients, until all have finished. At the end every process has the models of a process that
  // finished last; optimizers are not exchanged. Any other exchange inside the loop,
  // backward(loss_sum, num_items) and fp16 are Errors. With one process it just runs the loop.
  //
  //   accelerator.join_uneven_inputs({&model}, [&] { for (auto&& batch : loader) ... });
  void join_uneven_inputs(const std::vector<const ModelBase*>& models,
                          const std::function<void()>& loop, const dist::JoinOptions& options = {});

  // Trains without exchanging gradients and averages the parameters every few steps instead: see
  // dist/local_sgd.h. Lasts as long as the returned object.
  //
  //   auto local_sgd = accelerator.local_sgd(model, {.steps = 8});
  dist::LocalSgd local_sgd(const ModelBase& model, const dist::LocalSgdOptions& options = {});

  // --- In one process ----------------------------------------------------------------------------

  // Run f only in the process that the function names. The result comes back in an optional, which
  // is empty in all other processes.
  template <class F>
  auto on_main_process(F&& f) const {
    return run_if(is_main_process(), f);
  }
  template <class F>
  auto on_local_main_process(F&& f) const {
    return run_if(is_local_main_process(), f);
  }
  template <class F>
  auto on_last_process(F&& f) const {
    return run_if(is_last_process(), f);
  }
  template <class F>
  auto on_process(int64_t index, F&& f) const {
    return run_if(process_index() == index, f);
  }
  template <class F>
  auto on_local_process(int64_t index, F&& f) const {
    return run_if(local_process_index() == index, f);
  }

  // Returns this process's part of a vector, of a tensor (along the first dimension), or of a map
  // of those: see dist/process_control.h. Does not change the argument.
  template <class T>
  T split_between_processes(const T& values, bool apply_padding = false) const {
    note_division();
    return dist::split_between(values, process_index(), num_processes(), apply_padding);
  }

  // Prints the values, separated by spaces and followed by a newline, once per machine.
  template <class... Values>
  void print(const Values&... values) const {
    if (!is_local_main_process()) return;
    std::ostringstream text;
    const char* separator = "";
    ((text << separator << values, separator = " "), ...);
    print_line(text.str());
  }

  // --- Saving and loading ------------------------------------------------------------------------

  // Saves everything prepared or registered, and the position of the training, to a folder. The
  // folder is either complete or absent; see docs/checkpoints.md. All processes must call it, after
  // optimizer.step() or between updates. The current batch counts as done. Returns the folder.
  //
  // Without a folder, saves to the next `<project.dir>/checkpoints/checkpoint_<n>` and removes old
  // checkpoints as project.total_limit says. A checkpoint that already exists in the folder is
  // replaced.
  //
  // Throws Error in all processes if one of them cannot save. Earlier checkpoints are then
  // unchanged, and the training can continue. The Error of an asynchronous save is thrown by the
  // second save_state() after it, or by wait_for_saves(), load_state() or end_training().
  std::string save_state(const SaveStateOptions& options = {});
  std::string save_state(const std::string& folder, const SaveStateOptions& options = {});

  // Waits until no asynchronous save is running.
  void wait_for_saves();

  // Restores everything to the saved state; loops over loaders and epochs() continue from there.
  // Prepare the same objects in the same order, and register the same ones, before the call.
  // Without a folder, loads the newest checkpoint of the project; if that one is damaged, logs it
  // and tries the one before. Also loads folders written by Accelerate's save_state(). Throws Error
  // before anything is changed if the checkpoint does not fit. All processes must call it. Their
  // number may differ from the run that saved: see docs/checkpoints.md.
  LoadedState load_state();
  LoadedState load_state(const std::string& folder);

  // What prepare() resumed from, as project.resume says; nullopt if there was no checkpoint.
  std::optional<LoadedState> resumed() const;

  // Adds the object to checkpoints under this name. Its state_dict() returns a NamedState, a
  // StateDict or JSON, and its load_state_dict() takes the same. The object is borrowed and must
  // live as long as states are saved or loaded. Checkpoints hold the state of the main process's
  // object.
  template <class Object>
  void register_for_checkpointing(const std::string& name, Object& object) {
    static_assert(detail::Checkpointable<Object>,
                  "Accelerator::register_for_checkpointing takes objects with state_dict(), which "
                  "returns a NamedState, a StateDict or nlohmann::json, and load_state_dict(), "
                  "which takes the same");
    using Form = std::remove_cvref_t<decltype(object.state_dict())>;
    register_custom(
        {.name = name,
         .save = [&object] { return detail::to_named_state<Form>(object.state_dict()); },
         .load =
             [&object](const NamedState& state) {
               object.load_state_dict(detail::from_named_state<Form>(state));
             }});
  }

  // With project.save_on_preemption: if any process has received SIGTERM or SIGUSR1, saves the
  // state and throws Preempted (core/error.h), which ends the program with exit code 75 unless you
  // catch it. Loops over prepared loaders do this after each update. Call it, in all processes,
  // only if your program uses other loops.
  void stop_if_preempted();

  // Registers a hook that is called before models are saved or loaded: see StateHook.
  StateHookHandle register_save_state_pre_hook(StateHook hook);
  StateHookHandle register_load_state_pre_hook(StateHook hook);

  // Saves the model's weights in the format of Hugging Face's libraries, see checkpoint/models.h.
  // The main process writes; the other processes wait for it and get an Error if it fails. All
  // processes return the same value.
  SavedModel save_model(const ModelBase& model, const std::string& folder,
                        const SaveModelOptions& options = {}) const;

  // Saves a tensor, or tensors by name (StateDict, std::map), to one file: see checkpoint/models.h.
  // The main process writes; the other processes wait for it and get an Error if it fails.
  template <class Tensors>
  void save(const Tensors& tensors, const std::string& path,
            const SaveTensorsOptions& options = {}) const {
    main_process_first([&] {
      if (is_main_process()) accelerant::save(tensors, path, options);
    });
  }

  // Parameters and buffers by name: the model's own tensors, not copies.
  StateDict get_state_dict(const ModelBase& model) const { return model.state_dict(); }

  // The original module of a prepared model.
  template <class M>
  decltype(auto) unwrap_model(const Model<M>& model) const {
    return model.module();
  }

  // --- Around the loop ---------------------------------------------------------------------------

  // Records where the time goes while the returned object lives: see profile.h. Without an
  // argument, uses AcceleratorOptions::profile.
  ProfileScope profile();
  ProfileScope profile(const ProfileOptions& options);

  // The recording of phases, active while a ProfileScope lives. Add your own spans like this:
  //
  //   const auto span = accelerator.timeline().span("augment");
  Timeline& timeline();

  // Forgets everything that was prepared, empties the given handles, and returns cached device
  // memory. Using any other handle of a forgotten object is an Error.
  template <class... Handles>
  void free_memory(Handles&... handles) {
    ((handles = Handles()), ...);
    forget_everything();
  }

  // Throws the Error of `nonfinite = stop` that is still to come. Otherwise waits for asynchronous
  // saves, throws the Error of a failed one, and then closes the connections
  // between processes. The destructor does the same but only logs the Error, so call this if the
  // Accelerator lives on. Exchanges after it are an Error.
  void end_training();

  // --- Properties --------------------------------------------------------------------------------

  c10::Device device() const;
  Precision mixed_precision() const;

  // Enabled under fp16, and if `nonfinite` is skip or stop. Its scale is always 1 where losses are
  // not scaled; status() counts the skipped steps.
  GradScaler& scaler();

  const dist::Environment& environment() const;
  dist::DistributedType distributed_type() const { return environment().distributed_type; }
  int64_t num_processes() const { return environment().num_processes; }
  int64_t process_index() const { return environment().process_index; }
  int64_t local_process_index() const { return environment().local_process_index; }
  bool is_main_process() const { return environment().is_main_process(); }
  bool is_local_main_process() const { return environment().is_local_main_process(); }
  bool is_last_process() const { return environment().is_last_process(); }
  bool use_distributed() const { return environment().use_distributed(); }

  // The connection between the processes, for the functions of accelerant::dist.
  const dist::World& world() const;

  // The options in effect, including the environment. Every optional field that has a fallback is
  // set.
  const AcceleratorOptions& options() const;

  bool split_batches() const { return options().data_loader.split_batches; }
  std::optional<bool> dispatch_batches() const { return options().data_loader.dispatch_batches; }
  bool even_batches() const { return options().data_loader.even_batches; }
  bool non_blocking() const { return options().data_loader.non_blocking; }
  const std::string& project_dir() const { return options().project.dir; }
  const std::string& logging_dir() const;

 private:
  friend detail::Core& detail::core_of(const Accelerator& accelerator);

  template <class F>
  static auto run_if(bool here, F& f) {
    if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
      if (here) f();
    } else {
      std::optional<std::invoke_result_t<F&>> result;
      if (here) result.emplace(f());
      return result;
    }
  }

  template <class Object>
  auto prepare_one(Object&& object);
  template <detail::Role role, class Object>
  auto prepare_early(Object& object);

  // Throws Error for a handle of another Accelerator.
  void require_own(const ModelBase& model) const;
  void require_own(const std::shared_ptr<detail::Core>& core) const;

  std::shared_ptr<detail::ModelState> register_module(std::shared_ptr<torch::nn::Module> module,
                                                      const PrepareModelOptions& options);
  std::shared_ptr<detail::ModelState> register_module(torch::jit::Module& module,
                                                      const PrepareModelOptions& options);
  AccumulateScope open_window(const std::vector<const ModelBase*>& models);

  data::Placement placement() const;
  data::Placement placement_of(const data::LoaderHandle& loader) const;
  const std::any* find_loader(const void* original) const;
  void add_loader(std::shared_ptr<const void> original,
                  const std::shared_ptr<data::LoaderState>& state, std::any handle);
  template <class Prepared, class Make>
  Prepared prepare_loader_once(const std::shared_ptr<const void>& original, Make&& make);
  int64_t updates_in(std::optional<int64_t> batches) const;

  // The program itself divides data between processes.
  void note_division() const;

  void register_custom(detail::CustomObject object);

  void forget_everything();
  static void print_line(const std::string& line);

  std::shared_ptr<detail::Core> core_;
};

}  // namespace accelerant

#include "accelerant/accelerator/detail/prepare.h"
