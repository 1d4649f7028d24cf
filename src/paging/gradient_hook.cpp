#include "paging/gradient_hook.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <utility>

#include "paging/attachment.h"
#include "paging/registry.h"

namespace accelerant::paging {
namespace {

using Hook = torch::autograd::PostAccumulateGradHook;

// Lives in the parameter, so that nothing keeps the parameter alive. There is room for one hook per
// tensor; one that is there already runs first.
class CountGradient final : public Hook {
 public:
  CountGradient(std::weak_ptr<UnitState> unit, std::unique_ptr<Hook> first)
      : unit_(std::move(unit)), first_(std::move(first)) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    if (first_) (*first_)(parameter);
    const std::shared_ptr<UnitState> unit = unit_.lock();
    if (!unit) return;
    const std::lock_guard lock(Registry::instance().mutex);
    if (++unit->gradients >= unit->trained) {
      unit->gradients = 0;
      unit->is_finished = true;
    }
  }

  bool counts_for(const std::weak_ptr<UnitState>& unit) const {
    return !unit_.owner_before(unit) && !unit.owner_before(unit_);
  }

  std::unique_ptr<Hook> take_first() { return std::move(first_); }

 private:
  std::weak_ptr<UnitState> unit_;
  std::unique_ptr<Hook> first_;
};

void stop_watching(const WeakTensor& parameter, const std::weak_ptr<UnitState>& unit) {
  auto held = parameter.lock();
  if (!held) return;
  const at::Tensor tensor(std::move(held));
  std::unique_ptr<Hook>& hook = torch::autograd::impl::post_acc_grad_hooks(tensor);
  auto* const own = dynamic_cast<CountGradient*>(hook.get());
  // Under a hook that came later it stays, and does nothing once the unit is gone.
  if (own != nullptr && own->counts_for(unit)) hook = own->take_first();
}

}  // namespace

std::shared_ptr<void> watch_gradient(const at::Tensor& parameter,
                                     const std::shared_ptr<UnitState>& unit) {
  if (!parameter.is_leaf() || !parameter.requires_grad()) return nullptr;
  std::unique_ptr<Hook>& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
  hook = std::make_unique<CountGradient>(unit, std::move(hook));
  {
    const std::lock_guard lock(Registry::instance().mutex);
    ++unit->trained;
  }
  return {nullptr, [weak = WeakTensor(parameter.getIntrusivePtr()),
                    watched = std::weak_ptr(unit)](void*) { stop_watching(weak, watched); }};
}

}  // namespace accelerant::paging
