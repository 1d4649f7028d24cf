#include "accelerant/accelerator/model.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"
#include "accelerator/model_state.h"

namespace accelerant {

detail::ModelState& ModelBase::state() const {
  if (!state_) detail::refuse_empty_handle("Model");
  return *state_;
}

void ModelBase::train(bool on) const { state().module().train(on); }
bool ModelBase::is_training() const { return state().module().is_training(); }
void ModelBase::to(c10::Device device) const { state().module().to(device); }
void ModelBase::to(c10::ScalarType dtype) const { state().module().to(dtype); }

std::vector<at::Tensor> ModelBase::parameters() const { return named_parameters().values(); }
StateDict ModelBase::named_parameters() const { return state().module().named_parameters(); }
std::vector<at::Tensor> ModelBase::buffers() const { return named_buffers().values(); }
StateDict ModelBase::named_buffers() const { return state().module().named_buffers(); }
StateDict ModelBase::state_dict() const { return state().module().state_dict(); }

void ModelBase::load_state_dict(const StateDict& given, bool strict) const {
  const StateDict own = state_dict();
  std::string faults;
  for (const auto& item : own) {
    const at::Tensor* value = given.find(item.key());
    if (value == nullptr) {
      if (strict) faults += "\n  missing: " + item.key();
    } else if (value->sizes() != item.value().sizes()) {
      faults += c10::str("\n  shape of ", item.key(), ": expected ", item.value().sizes(), ", got ",
                         value->sizes());
    }
  }
  for (const auto& item : given) {
    if (strict && !own.contains(item.key())) faults += "\n  unexpected: " + item.key();
  }
  if (!faults.empty()) throw Error("The state does not fit the model:" + faults);

  const at::NoGradGuard no_grad;
  for (const auto& item : own) {
    if (const at::Tensor* value = given.find(item.key())) item.value().copy_(*value);
  }
}

}  // namespace accelerant
