#include <torch/nn/module.h>

#include <exception>

#include "accelerant/core/error.h"
#include "accelerant/paging/empty_weights.h"
#include "tensor/storage_move.h"

namespace accelerant {
namespace {

void require_values(const std::string& name, const at::Tensor& tensor, c10::Device device) {
  if (!tensor.is_meta() && !device.is_meta()) return;
  throw Error(ErrorDetails{.problem = "align_module_device cannot move " + name,
                           .expected = "a tensor with values, and a device that keeps them",
                           .got = tensor.is_meta() ? "a tensor on the meta device"
                                                   : "the meta device as the place to go",
                           .hint = tensor.is_meta() ? "give it memory with materialize() and load "
                                                      "or initialise its values first"
                                                    : "pass a device such as cpu or cuda:0"});
}

// Tensors of one home at a time, so that those that share a storage do so afterwards.
void move_all(const std::vector<at::Tensor>& tensors, c10::Device device) {
  StorageMove there(device);
  for (const at::Tensor& tensor : tensors) {
    if (!is_on(tensor, device)) there.prepare(tensor);
  }
  for (const at::Tensor& tensor : tensors) {
    if (!is_on(tensor, device)) there.move(tensor);
  }
}

}  // namespace

AlignedModule::AlignedModule(torch::nn::Module& module, std::optional<c10::Device> device,
                             const AlignOptions& options)
    : exceptions_(std::uncaught_exceptions()) {
  if (!device) return;
  std::vector<at::Tensor> tensors;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || is_on(tensor, *device)) continue;
      require_values(item.key(), tensor, *device);
      if (!StorageMove::can_move(tensor)) continue;
      tensors.push_back(tensor);
      homes_.emplace_back(tensor, tensor.device());
    }
  };
  add(module.named_parameters(options.recurse));
  if (options.include_buffers) add(module.named_buffers(options.recurse));
  move_all(tensors, *device);
}

AlignedModule::~AlignedModule() noexcept(false) {
  try {
    while (!homes_.empty()) {
      const c10::Device home = homes_.front().second;
      std::vector<at::Tensor> tensors;
      for (const auto& [tensor, device] : homes_) {
        if (device == home) tensors.push_back(tensor);
      }
      std::erase_if(homes_, [&](const auto& entry) { return entry.second == home; });
      move_all(tensors, home);
    }
  } catch (...) {
    if (std::uncaught_exceptions() == exceptions_) throw;
  }
}

}  // namespace accelerant
