// What a StepPlan remembers about parameters.
#pragma once

#include "optim/step_plan.h"

namespace accelerant::optim::detail {

// Counts the writes to a tensor.
inline int64_t version_of(const c10::TensorImpl& tensor) {
  const c10::VariableVersion& counter = tensor.version_counter();
  return counter.enabled() ? counter.current_version() : 0;  // inference tensors have none
}

// For one parameter, as long as the optimizer has it.
struct StepPlan::Slot {
  at::Tensor parameter;  // held, so that its address stays unique
  // Held likewise. Weakly if there is an image: then only the image is written to, and what
  // offloads the parameter must be able to tell aliases from it.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  c10::Storage memory;  // without an image: the kernels use it
  int64_t index = 0;    // in the counts on the device
  int64_t first_step = 0;
  kernels::Rule rule = kernels::Rule::sgd;
  torch::optim::OptimizerParamState* state = nullptr;
  at::Tensor states[kernels::kMostStates];
  at::Tensor master;
  at::Tensor image;               // of a parameter elsewhere, in host memory
  int64_t parameter_version = 0;  // after our last step; only with copies
  bool fresh_momentum =
      false;  // the momentum buffer was created here, for a first step that may be skipped

  bool has_copies() const { return master.defined() || image.defined(); }
  bool has_storage_of(const at::Tensor& tensor) const {
    return storage._unsafe_get_target() ==
           tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }
};

// Where a parameter is in the optimizer.
struct StepPlan::Place {
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  std::size_t group;
  std::size_t index;
};

struct StepPlan::Layout {
  std::vector<Place> places;  // one per tensor of the tables
  std::vector<kernels::StepBlock> blocks;
};

}  // namespace accelerant::optim::detail
