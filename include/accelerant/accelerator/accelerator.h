// The Accelerator: a libtorch training loop gains mixed precision, gradient accumulation, clipping,
// schedules and device placement by a few changed lines.
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
// Names and meaning are those of Hugging Face Accelerate; docs/parity.md lists the differences.
//
// An Accelerator and what it prepared belong to one thread at a time. It must outlive the use of
// what it prepared (steps and forwards after that are an Error). Objects given to prepare by name
// are borrowed: they must live while a handle of theirs does. A prepared object is forgotten when
// its last handle is gone, so all of it may be local to a function. Two Accelerators in one process
// do not disturb each other, but share what belongs to the process: see PerformanceOptions.
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
#include "accelerant/accelerator/scheduler.h"
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
  // Throws Error if an option, or an environment variable that stands in for one, is out of range
  // or cannot be met.
  explicit Accelerator(const AcceleratorOptions& options = {});
  ~Accelerator();
  Accelerator(Accelerator&&) noexcept;  // the source may then only be destroyed or assigned to
  Accelerator& operator=(Accelerator&&) noexcept;

  // --- Preparation -------------------------------------------------------------------------------

  // Takes models, optimizers, loaders and schedules in any number and order and returns the
  // prepared ones in that order: one as it is, several as a tuple. What is prepared already comes
  // back unchanged, and preparing an object again gives the same prepared one.
  template <class... Objects>
  auto prepare(Objects&&... objects);

  // Moves the module to the device and runs its forward in the Accelerator's precision. The model's
  // parameters are those the module has now; register others before.
  template <class M>
  auto prepare_model(M&& model, const PrepareModelOptions& options = {});

  // LBFGS is refused under fp16: it evaluates the loss several times in a step.
  Optimizer prepare_optimizer(torch::optim::Optimizer& optimizer,
                              const PrepareOptimizerOptions& options = {});
  Optimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                              const PrepareOptimizerOptions& options = {});
  Optimizer prepare_optimizer(const Optimizer& optimizer, const PrepareOptimizerOptions& = {});

  // The prepared loader gives its batches on the device and tells the Accelerator about the end of
  // an epoch. A torch::data loader is taken as a stream of batches.
  template <class L>
  auto prepare_data_loader(L&& loader);

  // A schedule follows the optimizer it was made for. One of torch::optim does not tell which that
  // is, so it follows all prepared optimizers.
  Scheduler prepare_scheduler(optim::LrScheduler& scheduler);
  Scheduler prepare_scheduler(optim::LrScheduler&& scheduler);
  Scheduler prepare_scheduler(optim::ReduceLrOnPlateau& scheduler);
  Scheduler prepare_scheduler(optim::ReduceLrOnPlateau&& scheduler);
  Scheduler prepare_scheduler(torch::optim::LRScheduler& scheduler);
  Scheduler prepare_scheduler(const Scheduler& scheduler);

  // --- The loop ----------------------------------------------------------------------------------

  // 0, 1, ..., count - 1. After a state was loaded, what is left of them: call epochs() in the same
  // order as the run that saved.
  Epochs epochs(int64_t count);

  // Runs autograd on the loss, scaled under fp16. Inside accumulate() the gradients of a window add
  // up to the mean over its micro-steps.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  // For losses that are sums over items, such as tokens: the gradients of a window add up to the
  // sum of all its losses divided by the number of all its items, however they are spread over the
  // micro-steps. A number that lies on the device is not waited for. The division happens at the
  // end of the window, when gradients are clipped, unscaled or stepped with. A window takes one
  // form of backward only.
  void backward(const at::Tensor& loss_sum, int64_t num_items, const BackwardOptions& options = {});
  void backward(const at::Tensor& loss_sum, const at::Tensor& num_items,
                const BackwardOptions& options = {});

  // Neither a number of items nor, as in libtorch, the tensor's own arguments: see BackwardOptions.
  template <class T>
  requires std::same_as<T, bool> || std::floating_point<T>
  void backward(const at::Tensor& loss, T, const BackwardOptions& = {}) = delete;

  // One micro-step of a window over these models; without models, over all. Calls with the same
  // models share a window, calls with others have their own.
  template <class... Models>
  AccumulateScope accumulate(const Models&... models) {
    static_assert((std::derived_from<Models, ModelBase> && ...),
                  "Accelerator::accumulate takes prepared models");
    return open_window({&models...});
  }

  // Clip gradients as the free functions do, after undoing the loss scale of the optimizers that
  // own the parameters. In the middle of a window nothing happens, and clip_grad_norm_ returns
  // nothing; otherwise the norm before clipping, on the device. For a model whose optimizer steps
  // in fused kernels the norm is clipped inside the step, and the gradients stay as they are: see
  // AcceleratorOptions::fused.
  std::optional<at::Tensor> clip_grad_norm_(const ModelBase& model, double max_norm,
                                            const NormOptions& options = {});
  std::optional<at::Tensor> clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                                            double max_norm, const NormOptions& options = {});
  void clip_grad_value_(const ModelBase& model, double clip_value);
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  // Undoes the loss scale in the gradients of one optimizer, or of all, so that they can be looked
  // at. Once in a window, further calls do nothing; so does a call in the middle of a window.
  void unscale_gradients(const Optimizer& optimizer);
  void unscale_gradients();

  // Runs code outside a model's forward in the Accelerator's precision. Without mixed precision the
  // scope does nothing.
  AutocastScope autocast() const;
  AutocastScope autocast(const AutocastSettings& settings) const;

  // The whole step as a CUDA graph that is replayed in each call, where that can be: see capture.h.
  template <class F>
  CapturedStep<std::decay_t<F>> capture(F&& step, const CaptureOptions& options = {}) {
    return {core_, std::forward<F>(step), options};
  }

  // Gives up what was gathered: windows that are half complete end here, and the gradients of all
  // prepared optimizers are cleared. For going on after an exception in the middle of a window.
  void drop_gradients();

  // Whether the latest micro-step completed its window; true before the first. Setting it by hand
  // counts for optimizers that are not part of a window.
  bool sync_gradients() const;
  void set_sync_gradients(bool sync);

  int64_t gradient_accumulation_steps() const;
  void set_gradient_accumulation_steps(int64_t steps);

  // Whether the last executed step of any prepared optimizer was skipped. May wait for the device.
  bool optimizer_step_was_skipped() const;

  // The micro-steps that the latest window has so far; 0 when it is complete and its scope has
  // ended.
  int64_t step() const;

  // Optimizer updates in one epoch of the loader, prepared or not: what schedules are made for. An
  // Error for a stream of unknown length.
  template <class Batch>
  int64_t updates_per_epoch(const data::Loader<Batch>& loader) const {
    return updates_in(loader.placed(placement()).length());
  }

  // --- Between processes -------------------------------------------------------------------------
  // All processes must call these in the same order. See accelerant/dist for what each one does.

  template <NestedTensors T>
  T gather(const T& data) const {
    return dist::gather(world(), data);
  }
  // Each sample once: what only fills up the current batch of the innermost loop is dropped.
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

  // A flag that any process may raise and all see, for example to stop early. Checking lowers it.
  void set_trigger();
  bool check_trigger();

  // --- Exchange of gradients ---------------------------------------------------------------------
  // accumulate() and backward() do it by themselves; this is for loops that want it otherwise.

  // No exchange of gradients between processes inside.
  NoSyncScope no_sync(const ModelBase& model);

  // The next backward exchanges the model's gradients although its forwards ran inside no_sync() or
  // in the middle of a window.
  void trigger_sync_in_backward(const ModelBase& model);

  // For processes that have different numbers of batches (data_loader.even_batches = false): runs
  // the loop of this process and then takes part in the exchanges of the others, with gradients of
  // zero, until all have ended. At the end all have the models of one that ended last; optimizers
  // are not exchanged. Any other exchange in the loop is an Error, and so are backward(loss_sum,
  // num_items) and fp16. In one process it just runs the loop.
  //
  //   accelerator.join_uneven_inputs({&model}, [&] { for (auto&& batch : loader) ... });
  void join_uneven_inputs(const std::vector<const ModelBase*>& models,
                          const std::function<void()>& loop, const dist::JoinOptions& options = {});

  // Training in which gradients are not exchanged, but parameters averaged every few steps: see
  // dist/local_sgd.h. Lasts as long as the object that is returned.
  //
  //   auto local_sgd = accelerator.local_sgd(model, {.steps = 8});
  dist::LocalSgd local_sgd(const ModelBase& model, const dist::LocalSgdOptions& options = {});

  // --- In one process ----------------------------------------------------------------------------

  // Run f on the process named; what it returns comes back in an optional, empty elsewhere.
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

  // This process's part of a vector, a tensor (along the first dimension), or a map of those: see
  // dist/process_control.h. The argument is not changed.
  template <class T>
  T split_between_processes(const T& values, bool apply_padding = false) const {
    return dist::split_between(values, process_index(), num_processes(), apply_padding);
  }

  // Prints the values with spaces between them and a newline, once on each machine.
  template <class... Values>
  void print(const Values&... values) const {
    if (!is_local_main_process()) return;
    std::ostringstream text;
    const char* separator = "";
    ((text << separator << values, separator = " "), ...);
    print_line(text.str());
  }

  // --- Saving and loading ------------------------------------------------------------------------

  // Saves everything that was prepared or registered, and where the training stands, as a folder
  // that is whole or not there at all; see docs/checkpoints.md. All processes must call it. Without
  // a folder: the next `<project.dir>/checkpoints/checkpoint_<n>`, and older ones are removed as
  // project.total_limit says. A checkpoint that is in the folder already is replaced. Returns the
  // folder. Behind optimizer.step(), or between updates; the batch in hand counts as done.
  //
  // Throws Error in all processes if one of them cannot save; what was saved before is then as it
  // was, and the training can go on. An Error of an asynchronous save comes from the second
  // save_state() after it, from wait_for_saves(), load_state() or end_training().
  std::string save_state(const SaveStateOptions& options = {});
  std::string save_state(const std::string& folder, const SaveStateOptions& options = {});

  // Returns when no asynchronous save is under way any more.
  void wait_for_saves();

  // Makes everything what it was when it was saved; the loops over loaders and epochs() go on from
  // there. The same objects must have been prepared, in the same order, and registered. Without a
  // folder: the newest of the project; if it is damaged, that is logged, and the one before is
  // taken. Folders of Accelerate's save_state() load too. What does not fit is an Error before
  // anything is changed. All processes must call it, as many as saved, or others: see
  // docs/checkpoints.md.
  LoadedState load_state();
  LoadedState load_state(const std::string& folder);

  // What prepare() resumed from, as project.resume says; nothing if there was no checkpoint.
  std::optional<LoadedState> resumed() const;

  // The object becomes part of checkpoints under that name. It has state_dict(), which gives a
  // NamedState, a StateDict or JSON, and load_state_dict(), which takes the same. It is borrowed,
  // and must live as long as states are saved or loaded. The main process's is saved.
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

  // With project.save_on_preemption: if SIGTERM or SIGUSR1 has come, to any process, saves the
  // state and throws Preempted (core/error.h), which ends the program with exit code 75 unless it
  // is caught. Loops over prepared loaders do this by themselves after each update; it is for
  // programs with other loops, in all processes.
  void stop_if_preempted();

  // Called before models are saved or loaded: see StateHook.
  StateHookHandle register_save_state_pre_hook(StateHook hook);
  StateHookHandle register_load_state_pre_hook(StateHook hook);

  // The model's weights as Hugging Face's libraries keep them, see checkpoint/models.h. The main
  // process writes; the others wait for it, and get an Error if it fails. All return the same.
  SavedModel save_model(const ModelBase& model, const std::string& folder,
                        const SaveModelOptions& options = {}) const;

  // A tensor, or tensors by name (StateDict, std::map), into one file: see checkpoint/models.h. The
  // main process writes; the others wait for it, and get an Error if it fails.
  template <class Tensors>
  void save(const Tensors& tensors, const std::string& path,
            const SaveTensorsOptions& options = {}) const {
    main_process_first([&] {
      if (is_main_process()) accelerant::save(tensors, path, options);
    });
  }

  // Parameters and buffers by name: the model's own tensors, not copies.
  StateDict get_state_dict(const ModelBase& model) const { return model.state_dict(); }

  // The original of a prepared model.
  template <class M>
  decltype(auto) unwrap_model(const Model<M>& model) const {
    return model.module();
  }

  // --- Around the loop ---------------------------------------------------------------------------

  // Records where the time goes as long as the object that is returned is there: see profile.h.
  // Without options: those of the Accelerator.
  ProfileScope profile();
  ProfileScope profile(const ProfileOptions& options);

  // Where the phases of the training are recorded while profile() is in force. For spans of the
  // program's own:
  //
  //   const auto span = accelerator.timeline().span("augment");
  Timeline& timeline();

  // Forgets everything that was prepared, empties the handles given, and gives cached device memory
  // back. Other handles of what was forgotten are an Error when used.
  template <class... Handles>
  void free_memory(Handles&... handles) {
    ((handles = Handles()), ...);
    forget_everything();
  }

  // Waits for asynchronous saves, and throws the Error of one, then ends the connections between
  // processes. The Accelerator's destructor does so, too, but logs the Error; call it where the
  // Accelerator lives on. Exchanges after it are an Error.
  void end_training();

  // --- Properties --------------------------------------------------------------------------------

  c10::Device device() const;
  Precision mixed_precision() const;

  // Enabled only under fp16.
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

  // What connects the processes: for the functions of accelerant::dist.
  const dist::World& world() const;

  // The options in force, environment included: no optional field that has a fallback is empty.
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

  // An Error for handles of another Accelerator.
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

  void register_custom(detail::CustomObject object);

  void forget_everything();
  static void print_line(const std::string& line);

  std::shared_ptr<detail::Core> core_;
};

}  // namespace accelerant

#include "accelerant/accelerator/detail/prepare.h"
