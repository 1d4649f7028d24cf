#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>

#include "accelerant/core/error.h"
#include "accelerant/paging/empty_weights.h"
#include "tensor/module_state.h"
#include "tensor/storage_move.h"

namespace accelerant {
namespace {

std::vector<at::Tensor> own_tensors(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters(/*recurse=*/false);
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) tensors.push_back(buffer);
  return tensors;
}

}  // namespace

std::vector<std::string> empty_tensors(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : state_of(module)) {
    if (item.value().defined() && item.value().is_meta()) names.push_back(item.key());
  }
  return names;
}

std::vector<std::string> materialize(torch::nn::Module& module, c10::Device device,
                                     const MaterializeOptions& options) {
  if (device.is_meta()) {
    throw Error(ErrorDetails{.problem = "The meta device has no memory to give to a model",
                             .expected = "a device such as cpu or cuda:0",
                             .got = device.str(),
                             .hint = "build the model under init_empty_weights() instead"});
  }
  const at::NoGradGuard no_grad;
  std::vector<std::string> names = empty_tensors(module);
  StorageMove memory(device);
  std::vector<at::Tensor> empty;
  for (const auto& item : state_of(module)) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || !tensor.is_meta()) continue;
    memory.prepare(tensor);
    empty.push_back(tensor);
  }
  std::unordered_set<const c10::TensorImpl*> moved;
  for (const at::Tensor& tensor : empty) {
    // A tensor with two names comes twice, the second time with memory.
    if (moved.insert(tensor.unsafeGetTensorImpl()).second) memory.move(tensor);
  }
  if (!options.init) return names;
  std::unordered_set<const torch::nn::Module*> seen;  // a module may have two names
  const auto init_if_moved = [&](const std::string& name, torch::nn::Module& one) {
    if (!seen.insert(&one).second) return;
    const auto tensors = own_tensors(one);
    const bool has_moved = std::ranges::any_of(tensors, [&](const at::Tensor& tensor) {
      return moved.contains(tensor.unsafeGetTensorImpl());
    });
    if (has_moved) options.init(name, one);
  };
  // named_modules() includes the module itself only if it is on the heap.
  init_if_moved("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    init_if_moved(item.key(), *item.value());
  }
  return names;
}

}  // namespace accelerant
