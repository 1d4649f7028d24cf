#include "paging/gradient_hook.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <utility>

#include "paging/registry.h"

namespace accelerant::paging {
namespace {

using torch::autograd::variable_list;

// Called behind the node that accumulates a gradient, so also behind hooks of the program.
class CountGradient final : public torch::autograd::FunctionPostHook {
 public:
  explicit CountGradient(std::weak_ptr<UnitState> unit) : unit_(std::move(unit)) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    const std::shared_ptr<UnitState> unit = unit_.lock();
    if (!unit) return outputs;
    const std::lock_guard lock(Registry::instance().mutex);
    if (++unit->gradients >= unit->trained) {
      unit->gradients = 0;
      unit->is_finished = true;
    }
    return outputs;
  }

 private:
  std::weak_ptr<UnitState> unit_;
};

}  // namespace

std::shared_ptr<void> watch_gradient(const at::Tensor& parameter,
                                     const std::shared_ptr<UnitState>& unit) {
  if (!parameter.is_leaf() || !parameter.requires_grad()) return nullptr;
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  if (!accumulator) return nullptr;
  const auto key = accumulator->add_post_hook(std::make_unique<CountGradient>(unit));
  {
    const std::lock_guard lock(Registry::instance().mutex);
    ++unit->trained;
  }
  // Parameters refer to these nodes only weakly.
  using Pointer = decltype(accumulator);
  return std::shared_ptr<void>(new Pointer(std::move(accumulator)), [key](void* pointer) {
    auto* const kept = static_cast<Pointer*>(pointer);
    (*kept)->del_post_hook(key);
    delete kept;
  });
}

}  // namespace accelerant::paging
