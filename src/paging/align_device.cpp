#include <torch/nn/module.h>

#include <exception>

#include "accelerant/core/error.h"
#include "accelerant/paging/empty_weights.h"
#include "paging/residency.h"
#include "tensor/storage_move.h"

namespace accelerant {
namespace {

void require_movable(const std::string& name, const at::Tensor& tensor, c10::Device device) {
  const bool is_paged = paging::is_paged(tensor);
  if (!is_paged && !tensor.is_meta() && !device.is_meta()) return;
  ErrorDetails details{.problem = "align_module_device cannot move " + name};
  if (is_paged) {
    details.expected = tensor.device().str() + ", where this offloaded parameter is used";
    details.got = device.str();
    details.hint = "pass that device or none, or end the offload with undo_offload() first";
  } else if (tensor.is_meta()) {
    details.expected = "a tensor with values";
    details.got = "one on the meta device";
    details.hint = "give it memory with materialize() and load or initialise its values first";
  } else {
    details.expected = "a device that keeps values, such as cpu or cuda:0";
    details.got = device.str();
    details.hint = "values cannot come back from the meta device";
  }
  throw Error(details);
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
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> offloaded;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      if (paging::is_paged(tensor)) offloaded.push_back(tensor);
      if (!device || is_on(tensor, *device)) continue;
      require_movable(item.key(), tensor, *device);
      if (!StorageMove::can_move(tensor)) continue;
      tensors.push_back(tensor);
      homes_.emplace_back(tensor, tensor.device());
    }
  };
  add(module.named_parameters(options.recurse));
  if (options.include_buffers) add(module.named_buffers(options.recurse));
  if (!offloaded.empty()) {
    residency_ = std::make_shared<paging::Residency>(
        offloaded, options.writes ? paging::Access::write : paging::Access::read);
  }
  if (device) move_all(tensors, *device);
}

// All of them, even if one cannot go home.
AlignedModule::~AlignedModule() noexcept(false) {
  std::exception_ptr first_failure;
  while (!homes_.empty()) {
    const c10::Device home = homes_.front().second;
    std::vector<at::Tensor> tensors;
    for (const auto& [tensor, device] : homes_) {
      if (device == home) tensors.push_back(tensor);
    }
    std::erase_if(homes_, [&](const auto& entry) { return entry.second == home; });
    try {
      move_all(tensors, home);
    } catch (...) {
      if (!first_failure) first_failure = std::current_exception();
    }
  }
  if (first_failure && std::uncaught_exceptions() == exceptions_) {
    std::rethrow_exception(first_failure);
  }
}

}  // namespace accelerant
