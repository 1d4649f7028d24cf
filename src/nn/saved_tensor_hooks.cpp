#include "nn/saved_tensor_hooks.h"

#include <torch/csrc/autograd/engine.h>

#include <typeinfo>
#include <utility>

#include "accelerant/core/error.h"

namespace accelerant::nn {
namespace {

using torch::autograd::Engine;

thread_local SavedTensorHookSource* current_source = nullptr;

// libtorch's engine, with hooks for saved tensors.
class HookedEngine final : public Engine {
 public:
  // All engines share one flag that says whether device threads exist. If another engine has
  // already run a backward, this one must create its own.
  HookedEngine() {
    initialize_device_threads_pool();
    if (device_ready_queues_.empty()) start_device_threads();
  }
  ~HookedEngine() override { stop(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_source == nullptr ? nullptr : current_source->make_hooks();
  }

  static Engine& instance() {
    static HookedEngine engine;
    return engine;
  }
};

bool install_engine() {
  if (typeid(Engine::get_default_engine()) != typeid(Engine)) {
    throw Error(ErrorDetails{.problem = "Activation checkpoints cannot be used in this process",
                             .expected = "libtorch's own autograd engine",
                             .got = "another engine, as in a Python process",
                             .hint = "use torch.utils.checkpoint there"});
  }
  torch::autograd::set_default_engine_stub(&HookedEngine::instance);
  return true;
}

}  // namespace

SavedTensorHookSource* exchange_hook_source(SavedTensorHookSource* source) {
  [[maybe_unused]] static const bool installed = install_engine();
  return std::exchange(current_source, source);
}

bool has_hook_source() { return current_source != nullptr; }

}  // namespace accelerant::nn
