// What lies behind the handles of one prepared model.
#pragma once

#include <memory>

#include "accelerant/accelerator/model.h"
#include "accelerator/core.h"
#include "accelerator/module_access.h"

namespace accelerant::detail {

class ModelState {
 public:
  // Checks and moves the module as the options say.
  ModelState(const std::shared_ptr<Core>& core, std::unique_ptr<ModuleAccess> module,
             const PrepareModelOptions& options);
  ~ModelState();
  ModelState(const ModelState&) = delete;
  ModelState& operator=(const ModelState&) = delete;

  std::shared_ptr<Core> core() const { return require_core(core_); }
  ModuleAccess& module() const { return *module_; }

  // As they were when the model was prepared.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // From now on every forward is an Error.
  void forget() { core_.reset(); }

 private:
  std::weak_ptr<Core> core_;
  std::unique_ptr<ModuleAccess> module_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace accelerant::detail
