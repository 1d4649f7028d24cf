// The state behind the handles of one prepared model.
#pragma once

#include <memory>

#include "accelerant/accelerator/model.h"
#include "accelerator/core.h"
#include "accelerator/offload/paged_model.h"
#include "accelerator/prepared/module_access.h"
#include "dist/data_parallel.h"

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

  // Whether its forward itself exchanges data, that is, whether it has a SyncBatchNorm.
  bool exchanges_in_forward() const { return exchanges_in_forward_; }

  // Whether AcceleratorOptions::offload.parameters concerns it: it does not fit into the budget.
  bool exceeds_budget() const { return exceeds_budget_; }

  // Its parameters that come and go for that reason. Null on the CPU, whose memory they are in
  // anyway.
  PagedModel* paged() const { return paged_.get(); }

  // Null with one process, and for models that are not trained.
  dist::DataParallel* parallel() const { return parallel_.get(); }

  // Whether the gradients of a forward that begins now are to be exchanged: not inside no_sync(),
  // and not in the middle of a window.
  bool synchronises(const Core& core) const;
  void enter_no_sync() { ++no_sync_depth_; }
  void leave_no_sync() { --no_sync_depth_; }
  bool is_in_no_sync() const { return no_sync_depth_ > 0; }

  // Whether 16-bit outputs of autocast are cast to float32.
  bool has_float32_outputs() const { return has_float32_outputs_; }

  // Whether an unsynchronised forward waits for its backward.
  bool has_local_forward() const { return has_local_forward_; }
  void set_local_forward(bool waits) { has_local_forward_ = waits; }

  // The parameters at the time the model was prepared.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // The number of backwards that the Accelerator had run by the last forward with gradients; -1 if
  // there was none.
  int64_t backwards_at_forward() const { return backwards_at_forward_; }
  void note_forward(int64_t backwards) { backwards_at_forward_ = backwards; }

  // Makes every later forward an Error.
  void forget() { core_.reset(); }

 private:
  bool must_page(const Core& core, bool is_for_evaluation) const;
  void make_parallel(const Core& core, const StateDict& named);

  std::weak_ptr<Core> core_;
  std::unique_ptr<ModuleAccess> module_;
  const bool has_float32_outputs_;
  std::vector<at::Tensor> parameters_;
  bool exceeds_budget_ = false;
  std::unique_ptr<PagedModel> paged_;
  std::unique_ptr<dist::DataParallel> parallel_;
  bool exchanges_in_forward_ = false;
  int no_sync_depth_ = 0;
  bool has_local_forward_ = false;
  int64_t backwards_at_forward_ = -1;
};

}  // namespace accelerant::detail
