#include <ATen/core/grad_mode.h>
#include <torch/nn/modules.h>

#include "accelerant/paging/empty_weights.h"

namespace accelerant {
namespace {

template <class Kind>
bool reset_if(torch::nn::Module& module) {
  auto* const known = dynamic_cast<Kind*>(&module);
  if (known == nullptr) return false;
  if constexpr (requires { known->_reset_parameters(); }) {
    known->_reset_parameters();
  } else if constexpr (std::is_same_v<Kind, torch::nn::PReLUImpl>) {
    known->weight.fill_(known->options.init());
  } else {
    known->reset_parameters();
  }
  return true;
}

template <class... Kinds>
bool reset_if_any(torch::nn::Module& module) {
  return (reset_if<Kinds>(module) || ...);
}

}  // namespace

bool reset_torch_module(torch::nn::Module& module) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): thirty names
  const at::NoGradGuard no_grad;
  return reset_if_any<LinearImpl, BilinearImpl, EmbeddingImpl, EmbeddingBagImpl, LayerNormImpl,
                      GroupNormImpl, MultiheadAttentionImpl, PReLUImpl>(module) ||
         reset_if_any<Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl,
                      ConvTranspose3dImpl>(module) ||
         reset_if_any<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl,
                      InstanceNorm2dImpl, InstanceNorm3dImpl>(module) ||
         reset_if_any<RNNImpl, LSTMImpl, GRUImpl, RNNCellImpl, LSTMCellImpl, GRUCellImpl>(module);
}

}  // namespace accelerant
