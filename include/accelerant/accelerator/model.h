// A prepared model. It is called like the module it was made from, in the Accelerator's precision:
//
//   auto model = accelerator.prepare_model(net);
//   auto output = model(images);            // under autocast; the output comes back in float32
//
// With several processes, each has a copy of the model. All copies start with the values of the
// main process, and backward() leaves the same gradients in all of them: the mean over the
// processes.
//
// There is no operator->: net->forward(x) would silently run in full precision and leave the
// gradients of this process only. To reach the original, call model.module().
//
// A Model is a cheap handle; copies refer to the same model. A module holder or shared pointer is
// shared. A module passed by reference is borrowed and must outlive all use of the handle.
//
// TorchScript modules are models too; their outputs are IValues:
//
//   auto net = torch::jit::load("net.pt");
//   auto model = accelerator.prepare_model(net);
//   auto output = model(images).toTensor();
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/amp/autocast.h"
#include "accelerant/tensor/detail/refill.h"
#include "accelerant/tensor/named_state.h"
#include "accelerant/tensor/nested.h"
#include "accelerant/track/timeline.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace accelerant {

class Accelerator;

struct PrepareModelOptions {
  // Move the model to the Accelerator's device. Default: the Accelerator's own option.
  std::optional<bool> device_placement = std::nullopt;

  // Prepare the model for inference only: it gets the precision and the device, but no gradients
  // are expected.
  bool evaluation_mode = false;

  // Convert trainable 16-bit parameters to float32 in place; autocast makes the 16-bit copies.
  // false: they stay as they are, and trainable float16 parameters are an Error under fp16, because
  // the scaler cannot unscale their gradients. Not to be confused with
  // AcceleratorOptions::master_weights, which leaves 16-bit parameters as they are and keeps
  // float32 copies in the optimizer: after this conversion it has nothing to do for this model.
  // Default: false.
  bool master_weights = false;

  // Convert 16-bit outputs to float32, as Accelerate does. false: they stay as autocast made them,
  // which saves memory and two passes over large outputs. Use false for losses that compute in
  // float32 themselves, such as accelerant::nn::functional::cross_entropy, or that run under
  // autocast().
  bool float32_outputs = true;
};

namespace detail {

class ModelState;

// Wraps one call of forward: sets autocast and, with several processes, exchanges buffers before
// the call and prepares the exchange of gradients after it.
class [[nodiscard]] ForwardScope {
 public:
  explicit ForwardScope(ModelState& state);

  bool casts_outputs() const { return casts_outputs_; }

  // Whether the outputs must go through finish().
  bool is_parallel() const { return is_parallel_; }

  // Calls the module's forward. An error of torch gets the layer, if it can be told, and the batch
  // added to its message.
  template <class F>
  decltype(auto) run(F&& forward) const {
    try {
      return forward();
    } catch (c10::Error& error) {
      explain(error);
      throw;
    }
  }

  // Takes all tensors of the output and returns the tensors to use instead.
  std::vector<at::Tensor> finish(std::vector<at::Tensor> outputs);

 private:
  void explain(c10::Error& error) const;

  ModelState& state_;
  Timeline::Span span_;
  std::optional<AutocastGuard> autocast_;
  std::shared_ptr<void> activation_offload_;  // null unless activations are offloaded
  bool casts_outputs_ = false;
  bool is_parallel_ = false;
  bool synchronises_ = false;
};

// The same for outputs of any structure.
template <class Output>
Output finish_forward(ForwardScope& scope, Output output) {
  if (scope.casts_outputs()) output = to_float32(output);
  if (!scope.is_parallel()) return output;
  return refilled(output, scope.finish(tensors_in(output)));
}

// What operator-> of a model returns: compilers show the name before the reason.
struct a_prepared_model_has_no_arrow_call_it_as_model_x;

template <class M>
concept ModuleObject = std::is_class_v<M> && std::derived_from<M, torch::nn::Module>;

// How a Model keeps its module: a holder as is, anything else by pointer.
template <class M>
struct ModuleTarget;

template <ModuleHolder M>
struct ModuleTarget<M> {
  M holder{nullptr};
  auto& implementation() const { return *holder.ptr(); }
  M module() const { return holder; }
};

template <ModuleObject M>
struct ModuleTarget<M> {
  std::shared_ptr<M> pointer = {};
  M& implementation() const { return *pointer; }
  M& module() const { return *pointer; }
};

}  // namespace detail

// What every prepared model offers, whatever its module is.
class ModelBase {
 public:
  // Training mode and evaluation mode, as for the module itself.
  void train(bool on = true) const;
  void eval() const { train(false); }
  bool is_training() const;

  // Moves the module, or casts its floating-point tensors, in place.
  void to(c10::Device device) const;
  void to(c10::ScalarType dtype) const;

  std::vector<at::Tensor> parameters() const;
  StateDict named_parameters() const;
  std::vector<at::Tensor> buffers() const;
  StateDict named_buffers() const;

  // Parameters and buffers by name: the model's own tensors, not copies.
  StateDict state_dict() const;

  // Copies values into the model. Names and shapes must match; with strict = false, names may be
  // missing on either side. One Error lists all mismatches before anything is changed.
  void load_state_dict(const StateDict& state, bool strict = true) const;

  // Handles of the same model are equal.
  friend bool operator==(const ModelBase& a, const ModelBase& b) { return a.state_ == b.state_; }

 protected:
  ModelBase() = default;
  explicit ModelBase(std::shared_ptr<detail::ModelState> state) : state_(std::move(state)) {}

  // Throws Error for an empty handle.
  detail::ModelState& state() const;

 private:
  friend class Accelerator;

  std::shared_ptr<detail::ModelState> state_;
};

// M is a module holder (as in Model<torch::nn::Linear>), a class derived from torch::nn::Module, or
// torch::jit::Module.
template <class M>
class Model : public ModelBase {
 public:
  // An empty handle. Assign to it before use; using it is an Error.
  Model() = default;

  // Calls the module's forward with any arguments it takes. Under mixed precision, 16-bit
  // floating-point outputs come back as float32, in containers and structs too, unless
  // float32_outputs is false.
  template <class... Args>
  auto operator()(Args&&... args) const {
    using Output = std::remove_cvref_t<decltype(target_.implementation().forward(
        std::forward<Args>(args)...))>;
    detail::ForwardScope scope(state());
    const auto forward = [&]() -> decltype(auto) {
      return target_.implementation().forward(std::forward<Args>(args)...);
    };
    if constexpr (std::is_void_v<Output>) {
      scope.run(forward);
      if (scope.is_parallel()) scope.finish({});
    } else {
      static_assert(
          UnderstoodNesting<Output>,
          "Accelerator: the output of this model's forward may hold tensors that cannot be seen; "
          "give its type a static visit_fields or specialise accelerant::NestedFields (see "
          "accelerant/tensor/nested.h)");
      return detail::finish_forward<Output>(scope, scope.run(forward));
    }
  }

  template <class... Args>
  auto forward(Args&&... args) const {
    return (*this)(std::forward<Args>(args)...);
  }

  // Always a compile-time error, because it would bypass autocast. The message says what to write
  // instead.
  template <class T = void>
  detail::a_prepared_model_has_no_arrow_call_it_as_model_x* operator->() const {
    static_assert(!std::is_void_v<T>,
                  "a prepared model has no operator->: call it as model(x), or reach the original "
                  "with model.module()");
    return nullptr;
  }

  // The original: the holder, or a reference to the module.
  decltype(auto) module() const {
    state();
    return target_.module();
  }

 private:
  friend class Accelerator;

  Model(std::shared_ptr<detail::ModelState> state, detail::ModuleTarget<M> target)
      : ModelBase(std::move(state)), target_(std::move(target)) {}

  detail::ModuleTarget<M> target_;
};

// A prepared TorchScript module, as loaded by torch::jit::load.
template <>
class Model<torch::jit::Module> : public ModelBase {
 public:
  Model() = default;

  // Calls the module's forward. Under mixed precision, 16-bit tensors in the output, nested ones
  // too, come back as float32, unless PrepareModelOptions::float32_outputs is false.
  template <class... Args>
  c10::IValue operator()(Args&&... args) const {
    return forward_values({c10::IValue(std::forward<Args>(args))...});
  }

  template <class... Args>
  c10::IValue forward(Args&&... args) const {
    return (*this)(std::forward<Args>(args)...);
  }

  // The inputs as torch::jit::Module::forward takes them.
  c10::IValue operator()(std::vector<c10::IValue> inputs) const {
    return forward_values(std::move(inputs));
  }
  c10::IValue forward(std::vector<c10::IValue> inputs) const {
    return forward_values(std::move(inputs));
  }

  // The original. The prepared model shares its parameters.
  torch::jit::Module& module() const;

 private:
  friend class Accelerator;

  explicit Model(std::shared_ptr<detail::ModelState> state) : ModelBase(std::move(state)) {}

  c10::IValue forward_values(std::vector<c10::IValue> inputs) const;
};

}  // namespace accelerant
