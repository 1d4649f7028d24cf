#include "optim/optimizer_kinds.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "accelerant/optim/lion.h"
#include "optim/master_weight.h"

namespace accelerant::optim::detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

Field tensor(const char* name, at::Tensor& tensor, std::string_view needed_if,
             FieldShape shape = FieldShape::parameter) {
  return {.name = name, .value = &tensor, .shape = shape, .needed_if = needed_if};
}

template <class List>
Field list(const char* name, List& tensors, FieldShape shape) {
  return {.name = name, .value = &tensors, .shape = shape};
}

template <class T>
Field value(const char* name, T& value) {
  return {.name = name, .value = &value};
}

std::vector<Field> typed_fields(torch::optim::SGDOptions& options) {
  return {value("lr", options.lr()), value("momentum", options.momentum()),
          value("dampening", options.dampening()), value("weight_decay", options.weight_decay()),
          value("nesterov", options.nesterov())};
}

std::vector<Field> typed_fields(torch::optim::SGDParamState& state) {
  return {tensor("momentum_buffer", state.momentum_buffer(), "momentum")};
}

template <class Options>
requires requires(Options& options) { options.amsgrad(); }
std::vector<Field> typed_fields(Options& options) {
  return {value("lr", options.lr()), value("betas", options.betas()), value("eps", options.eps()),
          value("weight_decay", options.weight_decay()), value("amsgrad", options.amsgrad())};
}

template <class State>
requires requires(State& state) { state.max_exp_avg_sq(); }
std::vector<Field> typed_fields(State& state) {
  return {value("step", state.step()), tensor("exp_avg", state.exp_avg(), kAlways),
          tensor("exp_avg_sq", state.exp_avg_sq(), kAlways),
          tensor("max_exp_avg_sq", state.max_exp_avg_sq(), "amsgrad")};
}

std::vector<Field> typed_fields(torch::optim::AdagradOptions& options) {
  return {value("lr", options.lr()), value("lr_decay", options.lr_decay()),
          value("weight_decay", options.weight_decay()),
          value("initial_accumulator_value", options.initial_accumulator_value()),
          value("eps", options.eps())};
}

std::vector<Field> typed_fields(torch::optim::AdagradParamState& state) {
  return {value("step", state.step()), tensor("sum", state.sum(), kAlways)};
}

std::vector<Field> typed_fields(torch::optim::RMSpropOptions& options) {
  return {value("lr", options.lr()),
          value("alpha", options.alpha()),
          value("eps", options.eps()),
          value("weight_decay", options.weight_decay()),
          value("momentum", options.momentum()),
          value("centered", options.centered())};
}

std::vector<Field> typed_fields(torch::optim::RMSpropParamState& state) {
  return {value("step", state.step()), tensor("square_avg", state.square_avg(), kAlways),
          tensor("momentum_buffer", state.momentum_buffer(), "momentum"),
          tensor("grad_avg", state.grad_avg(), "centered")};
}

std::vector<Field> typed_fields(LionOptions& options) {
  return {value("lr", options.lr()), value("betas", options.betas()),
          value("weight_decay", options.weight_decay())};
}

std::vector<Field> typed_fields(LionParamState& state) {
  return {tensor("exp_avg", state.exp_avg(), kAlways)};
}

std::vector<Field> typed_fields(torch::optim::LBFGSOptions& options) {
  return {value("lr", options.lr()),
          value("max_iter", options.max_iter()),
          value("max_eval", options.max_eval()),
          value("tolerance_grad", options.tolerance_grad()),
          value("tolerance_change", options.tolerance_change()),
          value("history_size", options.history_size()),
          value("line_search_fn", options.line_search_fn())};
}

// All of it belongs to the first parameter.
std::vector<Field> typed_fields(torch::optim::LBFGSParamState& state) {
  return {value("func_evals", state.func_evals()),
          value("n_iter", state.n_iter()),
          value("t", state.t()),
          value("prev_loss", state.prev_loss()),
          tensor("d", state.d(), "n_iter", FieldShape::flat),
          tensor("H_diag", state.H_diag(), "n_iter", FieldShape::scalar),
          tensor("prev_flat_grad", state.prev_flat_grad(), "n_iter", FieldShape::flat),
          list("old_dirs", state.old_dirs(), FieldShape::flat),
          list("old_stps", state.old_stps(), FieldShape::flat),
          list("ro", state.ro(), FieldShape::scalar),
          list("al", state.al(), FieldShape::scalar)};
}

template <class Kind, class Options, class State>
class TypedKind final : public OptimizerKind {
 public:
  explicit TypedKind(const char* name) : name_(name) {}

  const char* name() const override { return name_; }

  bool is_kind_of(const Optimizer& optimizer) const override {
    return dynamic_cast<const Kind*>(&optimizer) != nullptr;
  }

  std::vector<Field> fields(OptimizerOptions& options) const override {
    auto* const typed = dynamic_cast<Options*>(&options);
    return typed == nullptr ? std::vector<Field>() : typed_fields(*typed);
  }

  std::vector<Field> fields(OptimizerParamState& state) const override {
    auto* const typed = dynamic_cast<State*>(&state);
    if (typed == nullptr) return {};
    std::vector<Field> fields = typed_fields(*typed);
    if (auto* const master = dynamic_cast<MasterWeight*>(&state)) {
      fields.push_back(tensor(kMasterName, master->master_param, /*needed_if=*/{}));
    }
    return fields;
  }

  std::unique_ptr<OptimizerParamState> make_state() const override {
    if constexpr (std::is_same_v<Kind, torch::optim::LBFGS>) {
      return std::make_unique<State>();
    } else {
      return std::make_unique<WithMaster<State>>();
    }
  }

 private:
  const char* name_;
};

}  // namespace

const std::vector<const OptimizerKind*>& optimizer_kinds() {
  using namespace torch::optim;
  static const TypedKind<SGD, SGDOptions, SGDParamState> sgd("SGD");
  static const TypedKind<Adam, AdamOptions, AdamParamState> adam("Adam");
  static const TypedKind<AdamW, AdamWOptions, AdamWParamState> adamw("AdamW");
  static const TypedKind<Adagrad, AdagradOptions, AdagradParamState> adagrad("Adagrad");
  static const TypedKind<RMSprop, RMSpropOptions, RMSpropParamState> rmsprop("RMSprop");
  static const TypedKind<Lion, LionOptions, LionParamState> lion("Lion");
  static const TypedKind<LBFGS, LBFGSOptions, LBFGSParamState> lbfgs("LBFGS");
  static const std::vector<const OptimizerKind*> kinds = {&sgd,     &adam, &adamw, &adagrad,
                                                          &rmsprop, &lion, &lbfgs};
  return kinds;
}

const OptimizerKind* find_kind(const std::string& name) {
  for (const OptimizerKind* kind : optimizer_kinds()) {
    if (name == kind->name()) return kind;
  }
  return nullptr;
}

const OptimizerKind* find_kind(const Optimizer& optimizer) {
  for (const OptimizerKind* kind : optimizer_kinds()) {
    if (kind->is_kind_of(optimizer)) return kind;
  }
  return nullptr;
}

std::vector<Field> fields_of(OptimizerParamState& state) {
  for (const OptimizerKind* kind : optimizer_kinds()) {
    auto fields = kind->fields(state);
    if (!fields.empty()) return fields;
  }
  return {};
}

}  // namespace accelerant::optim::detail
