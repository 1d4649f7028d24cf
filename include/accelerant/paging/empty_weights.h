// Models without memory: build a model of any size in no time, then decide where its weights go.
//
//   {
//     auto empty = accelerant::init_empty_weights();
//     net = Llama(config_70b);           // weights on the meta device: shapes and types, no memory
//   }
//   auto net = accelerant::init_empty_weights([&] { return Llama(config_70b); });  // the same
//
//   accelerant::materialize(net, torch::kCUDA);                  // gives them memory
//   accelerant::load_checkpoint_in_model(net, "llama-70b");      // and values
//
//   auto on_gpu = accelerant::init_on_device(torch::kCUDA);      // weights on the GPU from the start
//
// The scopes work for every module without changing it, those of torch::nn and your own: they see
// what a constructor creates. Like Accelerate's functions of the same names they move parameters,
// and leave buffers as the constructor makes them. What a parameter is shows when it is registered:
// a leaf tensor, created in the scope, that requires grad. It is moved at the next operation on it,
// or when the scope ends. So a constructor that asks for the address of a parameter's memory may
// get what is soon no longer used.
//
// Where C++ differs from Python:
//   - An empty scope draws no random numbers. Whatever a random operation creates or fills
//     (torch::randn, normal_, ...) is on the meta device, also a buffer. The generators stay as
//     they were.
//   - A parameter registered with requires_grad = false looks like a buffer. It stays real, except
//     in the form that takes a function, which knows the finished module. Modules that are frozen
//     later, by requires_grad_(false) at the end of a constructor, are treated as parameters as far
//     as torch's initialisers touched them before.
//   - The same goes for a parameter made by torch::tensor({...}) that nothing uses afterwards.
//   - A tensor that does not come from an operation of torch (torch::from_blob), or that existed
//     before the scope, stays where it is.
//
// A scope belongs to the thread that opens it; other threads create real tensors meanwhile. Scopes
// nest, and the innermost one counts. Outside of all scopes nothing costs anything.
#pragma once

#include <c10/core/Device.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/tensor/named_state.h"

namespace accelerant {

struct InitOptions {
  // Create buffers on the device too, as well as all other tensors for which the code does not name
  // a device. Default: the environment variable ACCELERATE_INIT_INCLUDE_BUFFERS, or else false.
  std::optional<bool> include_buffers = std::nullopt;
};

// The scope that init_empty_weights() and init_on_device() open.
class [[nodiscard]] InitScope {
 public:
  explicit InitScope(c10::Device device, const InitOptions& options = {});

  // Moves what is left to be moved. Throws if the device has no memory for it, unless an exception
  // is on its way already.
  ~InitScope() noexcept(false);

  InitScope(const InitScope&) = delete;
  InitScope& operator=(const InitScope&) = delete;

  // Moves the parameters of a finished module that were created in this scope, also those that do
  // not require grad; its buffers too if they are included.
  void finish(const torch::nn::Module& module);

 private:
  class State;

  std::unique_ptr<State> state_;
  int exceptions_;
};

// Modules made in the scope have parameters on the meta device. Throws Error if this libtorch does
// not let Accelerant see what a constructor creates.
inline InitScope init_empty_weights(const InitOptions& options = {}) {
  return InitScope(c10::Device(c10::DeviceType::Meta), options);
}

// Modules made in the scope have parameters on the device, where torch's initialisers fill them.
inline InitScope init_on_device(c10::Device device, const InitOptions& options = {}) {
  return InitScope(device, options);
}

namespace detail {

// For a module, its holder, or a pointer to it.
template <class Built>
void finish(InitScope& scope, const Built& built) {
  if constexpr (ModuleHolder<Built>) {
    if (!built.is_empty()) scope.finish(static_cast<const torch::nn::Module&>(*built.ptr()));
  } else if constexpr (requires { built.get(); }) {
    if (built) scope.finish(static_cast<const torch::nn::Module&>(*built));
  } else {
    scope.finish(static_cast<const torch::nn::Module&>(built));
  }
}

}  // namespace detail

// Builds a module in such a scope and returns it: build() returns a module, its holder, or a
// pointer to it.
template <std::invocable Build>
auto init_on_device(c10::Device device, Build&& build, const InitOptions& options = {}) {
  InitScope scope(device, options);
  auto built = std::forward<Build>(build)();
  detail::finish(scope, built);
  return built;
}

template <std::invocable Build>
auto init_empty_weights(Build&& build, const InitOptions& options = {}) {
  return init_on_device(c10::Device(c10::DeviceType::Meta), std::forward<Build>(build), options);
}

// --- Memory for an empty model -------------------------------------------------------------------

// The names of the parameters and buffers on the meta device.
std::vector<std::string> empty_tensors(const torch::nn::Module& module);

struct MaterializeOptions {
  // Called for every module that owns tensors which got memory, with its name ("" is the module
  // itself), without recording gradients: first the module, then its children. Fill the tensors
  // here, for example with reset_torch_module(). Default: they stay uninitialised.
  std::function<void(const std::string& name, torch::nn::Module& module)> init = {};
};

// Gives the tensors on the meta device memory on another one, and returns their names. The others
// stay as they are. Tensors keep their identity: optimizers made before stay valid, tied weights
// stay tied. If the memory does not suffice, nothing has changed.
std::vector<std::string> materialize(torch::nn::Module& module, c10::Device device,
                                     const MaterializeOptions& options = {});

// Initialises the tensors that a module of torch::nn owns (not those of its children) as its
// constructor does. Returns false for other modules. For MaterializeOptions::init:
//
//   .init = [](const std::string&, torch::nn::Module& module) { reset_torch_module(module); }
//
// A torch::nn::Transformer initialises its children in a way of its own: call its reset_parameters()
// afterwards.
bool reset_torch_module(torch::nn::Module& module);

// --- Elsewhere for a while -----------------------------------------------------------------------

struct AlignOptions {
  // Move the parameters of children too. Default: false, as in Accelerate.
  bool recurse = false;

  // Move buffers too. Default: false, as in Accelerate.
  bool include_buffers = false;

  // Whether offloaded parameters may change in the scope. false: they are only read, so that those
  // on disk stay there; changes that are made through their addresses are lost. Default: true,
  // after which they count as changed, and what was on disk lives in host memory.
  bool writes = true;
};

// A scope in which the parameters of a module are on a device. Afterwards they are back where they
// were, with the values they then have. Offloaded parameters (paging/offload.h) are in the memory of
// their execution device meanwhile, where also code that reads their addresses finds them.
//
// Throws Error if a parameter is on the meta device or is to go there, because values cannot come
// back from there, and if an offloaded one is to go to a device other than its own.
class [[nodiscard]] AlignedModule {
 public:
  AlignedModule(torch::nn::Module& module, std::optional<c10::Device> device,
                const AlignOptions& options);
  ~AlignedModule() noexcept(false);
  AlignedModule(const AlignedModule&) = delete;
  AlignedModule& operator=(const AlignedModule&) = delete;

 private:
  std::vector<std::pair<at::Tensor, c10::Device>> homes_;
  std::shared_ptr<void> residency_;  // of those that are offloaded
  int exceptions_;
};

// device: std::nullopt moves nothing, but holds what is offloaded.
inline AlignedModule align_module_device(torch::nn::Module& module,
                                         std::optional<c10::Device> device = std::nullopt,
                                         const AlignOptions& options = {}) {
  return AlignedModule(module, device, options);
}

// --- The same for holders, such as torch::nn::Linear -------------------------------------------

template <detail::ModuleHolder M>
std::vector<std::string> empty_tensors(const M& model) {
  return empty_tensors(static_cast<const torch::nn::Module&>(*model.ptr()));
}

template <detail::ModuleHolder M>
std::vector<std::string> materialize(const M& model, c10::Device device,
                                     const MaterializeOptions& options = {}) {
  return materialize(static_cast<torch::nn::Module&>(*model.ptr()), device, options);
}

template <detail::ModuleHolder M>
AlignedModule align_module_device(const M& model, std::optional<c10::Device> device = std::nullopt,
                                  const AlignOptions& options = {}) {
  return AlignedModule(static_cast<torch::nn::Module&>(*model.ptr()), device, options);
}

}  // namespace accelerant
