// A common interface to the two kinds of modules in libtorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <unordered_set>

#include "accelerant/accelerator/model.h"
#include "accelerant/dist/world.h"

namespace torch::jit {
struct Module;
}

namespace torch::nn {
class Module;
}

namespace accelerant::detail {

class ModuleAccess {
 public:
  virtual ~ModuleAccess() = default;

  // The same for every handle of one module, different for different modules that are alive.
  virtual const void* identity() const = 0;

  virtual void train(bool on) = 0;
  virtual bool is_training() const = 0;
  // Changes when the training mode of any submodule changes.
  virtual uint64_t modes() const = 0;
  virtual void to(c10::Device device) = 0;
  virtual void to(c10::ScalarType dtype) = 0;
  virtual StateDict named_parameters() const = 0;
  virtual StateDict named_buffers() const = 0;

  // Gives modules that exchange data themselves the World to use. Returns the number of such
  // modules.
  virtual int64_t connect(const std::shared_ptr<dist::World>&) { return 0; }

  // Parameters whose gradients are sparse tensors.
  virtual std::unordered_set<const c10::TensorImpl*> sparse_parameters() const { return {}; }

  // Advice on how to make the module faster, in one line; empty if there is none.
  virtual std::string advice() const { return ""; }

  // Parameters and buffers, module by module.
  virtual StateDict state_dict() const = 0;

  // Null if this is a torch::jit module.
  virtual const torch::nn::Module* nn_module() const { return nullptr; }

  // Null unless this is a torch::jit module.
  virtual torch::jit::Module* jit_module() { return nullptr; }
};

std::unique_ptr<ModuleAccess> access_to(std::shared_ptr<torch::nn::Module> module);
std::unique_ptr<ModuleAccess> access_to(const torch::jit::Module& module);

// One line that names submodules for which there is a faster drop-in replacement, and says what to
// write instead; empty if there are none.
std::string slow_modules_advice(const torch::nn::Module& module);

}  // namespace accelerant::detail
