#include "optim/fused_kind.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string_view>
#include <typeinfo>

#include "accelerant/optim/lion.h"
#include "optim/master_weight.h"

namespace accelerant::optim::detail {
namespace {

using kernels::Rule;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

std::vector<const char*> state_names(Rule rule) {
  if (rule == Rule::sgd) return {};
  if (rule == Rule::sgd_momentum || rule == Rule::sgd_nesterov) return {"momentum_buffer"};
  if (is_adam(rule)) {
    std::vector<const char*> names = {"exp_avg", "exp_avg_sq"};
    if (is_amsgrad(rule)) names.push_back("max_exp_avg_sq");
    return names;
  }
  if (is_rmsprop(rule)) {
    std::vector<const char*> names = {"square_avg"};
    if (has_momentum(rule)) names.push_back("momentum_buffer");
    if (is_centered(rule)) names.push_back("grad_avg");
    return names;
  }
  return {rule == Rule::adagrad ? "sum" : "exp_avg"};
}

const Field* find(const std::vector<Field>& fields, std::string_view name) {
  for (const Field& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

template <class T>
const T* value_in(const std::vector<Field>& fields, std::string_view name) {
  const Field* const field = find(fields, name);
  return field == nullptr ? nullptr : field->as<T>();
}

double value_or_zero(const double* value) { return value == nullptr ? 0.0 : *value; }
bool is_set(const bool* value) { return value != nullptr && *value; }

// A state that can hold a master copy, with everything taken over from the old one.
std::unique_ptr<OptimizerParamState> with_master_field(const OptimizerKind& kind,
                                                       OptimizerParamState& old) {
  auto made = kind.make_state();
  const auto sources = kind.fields(old);
  const auto targets = kind.fields(*made);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::visit([&]<class T>(T* target) { *target = std::move(*std::get<T*>(sources[i].value)); },
               targets[i].value);
  }
  return made;
}

}  // namespace

const OptimizerKind* find_fused_kind(const Optimizer& optimizer) {
  const auto is_exactly = [&]<class Kind>(std::type_identity<Kind>) {
    return typeid(optimizer) == typeid(Kind);
  };
  const bool known = is_exactly(std::type_identity<torch::optim::SGD>()) ||
                     is_exactly(std::type_identity<torch::optim::Adam>()) ||
                     is_exactly(std::type_identity<torch::optim::AdamW>()) ||
                     is_exactly(std::type_identity<torch::optim::Adagrad>()) ||
                     is_exactly(std::type_identity<torch::optim::RMSprop>()) ||
                     is_exactly(std::type_identity<Lion>());
  return known ? find_kind(optimizer) : nullptr;
}

OptionReader::OptionReader(const OptimizerKind& kind, OptimizerOptions& options)
    : source_(&options) {
  const std::string_view name = kind.name();
  family_ = name == "SGD"       ? Family::sgd
            : name == "Adam"    ? Family::adam
            : name == "AdamW"   ? Family::adamw
            : name == "Adagrad" ? Family::adagrad
            : name == "RMSprop" ? Family::rmsprop
                                : Family::lion;
  const std::vector<Field> fields = kind.fields(options);
  lr_ = value_in<double>(fields, "lr");
  betas_ = value_in<std::tuple<double, double>>(fields, "betas");
  alpha_ = value_in<double>(fields, "alpha");
  eps_ = value_in<double>(fields, "eps");
  weight_decay_ = value_in<double>(fields, "weight_decay");
  momentum_ = value_in<double>(fields, "momentum");
  dampening_ = value_in<double>(fields, "dampening");
  lr_decay_ = value_in<double>(fields, "lr_decay");
  first_sum_ = value_in<double>(fields, "initial_accumulator_value");
  amsgrad_ = value_in<bool>(fields, "amsgrad");
  nesterov_ = value_in<bool>(fields, "nesterov");
  centered_ = value_in<bool>(fields, "centered");
}

Rule OptionReader::rule() const {
  const bool with_momentum = value_or_zero(momentum_) != 0.0;
  switch (family_) {
    case Family::sgd:
      if (!with_momentum) return Rule::sgd;
      return is_set(nesterov_) ? Rule::sgd_nesterov : Rule::sgd_momentum;
    case Family::adam:
      return is_set(amsgrad_) ? Rule::adam_amsgrad : Rule::adam;
    case Family::adamw:
      return is_set(amsgrad_) ? Rule::adamw_amsgrad : Rule::adamw;
    case Family::adagrad:
      return Rule::adagrad;
    case Family::rmsprop:
      if (is_set(centered_)) {
        return with_momentum ? Rule::rmsprop_centered_momentum : Rule::rmsprop_centered;
      }
      return with_momentum ? Rule::rmsprop_momentum : Rule::rmsprop;
    case Family::lion:
      break;
  }
  return Rule::lion;
}

kernels::Hyper OptionReader::hyper() const {
  return {.lr = value_or_zero(lr_),
          .beta1 = betas_ == nullptr ? 0.0 : std::get<0>(*betas_),
          .beta2 = betas_ == nullptr ? value_or_zero(alpha_) : std::get<1>(*betas_),
          .eps = value_or_zero(eps_),
          .weight_decay = value_or_zero(weight_decay_),
          .momentum = value_or_zero(momentum_),
          .dampening = value_or_zero(dampening_),
          .lr_decay = value_or_zero(lr_decay_)};
}

double OptionReader::first_sum() const { return value_or_zero(first_sum_); }

FusedState fused_state_of(const OptimizerKind& kind, Optimizer& optimizer,
                          const at::Tensor& parameter, Rule rule, bool with_master) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) {
    state = kind.make_state();
  } else if (with_master && dynamic_cast<MasterWeight*>(state.get()) == nullptr) {
    state = with_master_field(kind, *state);
  }
  FusedState found;
  found.state = state.get();
  const std::vector<Field> fields = kind.fields(*state);
  for (const char* name : state_names(rule)) {
    found.tensors.push_back(find(fields, name)->as<at::Tensor>());
  }
  if (const Field* const master = find(fields, kMasterName))
    found.master = master->as<at::Tensor>();
  if (const Field* const step = find(fields, "step")) found.step = step->as<int64_t>();
  return found;
}

}  // namespace accelerant::optim::detail
