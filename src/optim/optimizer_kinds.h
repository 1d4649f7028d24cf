// The optimizers of torch::optim and our own: the options of each, and its state of a parameter, by
// the names of Python's torch.optim. Only this file knows the fields.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace accelerant::optim::detail {

enum class FieldShape {
  parameter,  // the shape of the parameter
  flat,       // one dimension with all elements of all parameters of the optimizer
  scalar,     // no dimensions
};

using TensorList = std::deque<at::Tensor>;
using ScratchList = std::optional<std::vector<at::Tensor>>;  // elements may be undefined

// One option, or one part of a parameter's state. Points into the object it was created from.
struct Field {
  using Value =
      std::variant<int64_t*, double*, bool*, std::tuple<double, double>*, std::optional<int64_t>*,
                   std::optional<std::string>*, at::Tensor*, TensorList*, ScratchList*>;

  const char* name = nullptr;
  Value value = {};

  // For tensors and elements of lists.
  FieldShape shape = FieldShape::parameter;

  // For tensors: a step needs it if the option or state value of this name is not zero. kAlways:
  // always; empty: never.
  std::string_view needed_if = {};

  // The pointer, or null if the field has another type.
  template <class T>
  T* as() const {
    T* const* const pointer = std::get_if<T*>(&value);
    return pointer == nullptr ? nullptr : *pointer;
  }
};

inline constexpr std::string_view kAlways = "always";

class OptimizerKind {
 public:
  virtual ~OptimizerKind() = default;

  // The name of the class, the same as in Python: "AdamW".
  virtual const char* name() const = 0;

  virtual bool is_kind_of(const torch::optim::Optimizer& optimizer) const = 0;

  // Empty if the options or the state belong to another kind.
  virtual std::vector<Field> fields(torch::optim::OptimizerOptions& options) const = 0;
  virtual std::vector<Field> fields(torch::optim::OptimizerParamState& state) const = 0;

  // With a field for a master copy (the last one) if the optimizer may have one.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state() const = 0;
};

// SGD, Adam, AdamW, Adagrad, RMSprop, Lion and LBFGS.
const std::vector<const OptimizerKind*>& optimizer_kinds();

// Null if it is not one of them.
const OptimizerKind* find_kind(const std::string& name);

// The kind of the optimizer, or of its base class; otherwise null.
const OptimizerKind* find_kind(const torch::optim::Optimizer& optimizer);

// The fields of a state whose kind is unknown; empty if it belongs to none.
std::vector<Field> fields_of(torch::optim::OptimizerParamState& state);

}  // namespace accelerant::optim::detail
