#include "paging/residency.h"

#include <torch/nn/module.h>

#include "paging/interception.h"

namespace accelerant::paging {

Residency::Residency(at::TensorList tensors, Access access) { hold(tensors, access); }

Residency::Residency(const torch::nn::Module& module, Access access) {
  hold(module.parameters(), access);
}

Residency::~Residency() = default;

void Residency::hold(at::TensorList tensors, Access access) {
  const Use use{.writes = access == Access::write, .is_guard = true};
  for (const at::Tensor& tensor : tensors) {
    if (is_paged(tensor)) pins_.add(tensor, use);
  }
}

bool is_paged(const at::Tensor& tensor) { return tensor.defined() && has_paging_key(tensor); }

}  // namespace accelerant::paging
