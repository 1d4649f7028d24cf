#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/csrc/jit/api/module.h>

#include "accelerant/accelerator/model.h"
#include "accelerator/fingerprint.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/module_access.h"

namespace accelerant {
namespace detail {
namespace {

template <class NamedTensors>
void insert_all(const NamedTensors& tensors, StateDict& state) {
  for (const auto& item : tensors) state.insert(item.name, item.value);
}

class JitModuleAccess : public ModuleAccess {
 public:
  explicit JitModuleAccess(const torch::jit::Module& module) : module_(module) {}

  const void* identity() const override { return module_._ivalue().get(); }
  void train(bool on) override { module_.train(on); }
  bool is_training() const override { return module_.is_training(); }
  uint64_t modes() const override {
    std::size_t modes = 0;
    for (const torch::jit::Module& part : module_.modules()) mix(modes, part.is_training() ? 1 : 2);
    return modes;
  }
  void to(c10::Device device) override { module_.to(device); }
  void to(c10::ScalarType dtype) override { module_.to(dtype); }

  StateDict named_parameters() const override {
    StateDict parameters;
    insert_all(module_.named_parameters(), parameters);
    return parameters;
  }

  StateDict named_buffers() const override {
    StateDict buffers;
    insert_all(module_.named_buffers(), buffers);
    return buffers;
  }

  StateDict state_dict() const override {
    StateDict state;
    collect_state(module_, "", state);
    return state;
  }

  torch::jit::Module* jit_module() override { return &module_; }

 private:
  static void collect_state(const torch::jit::Module& module, const std::string& prefix,
                            StateDict& state) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      state.insert(prefix + item.name, item.value);
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      state.insert(prefix + item.name, item.value);
    }
    for (const auto& child : module.named_children()) {
      collect_state(child.value, prefix + child.name + ".", state);
    }
  }

  torch::jit::Module module_;  // its own handle to the same module
};

// map_tensors for values whose structure is only known at run time.
template <class F>
c10::IValue map_tensors(const c10::IValue& value, F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTuple()) {
    const auto tuple = value.toTuple();
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : tuple->elements())
      elements.push_back(map_tensors(element, f));
    // The type carries the names of a named tuple.
    return c10::ivalue::Tuple::createNamed(std::move(elements), tuple->type());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      tensors.push_back(f(tensor));
    }
    return tensors;
  }
  if (value.isList()) {
    const auto list = value.toList();
    auto result = c10::impl::GenericList(list.elementType());
    for (std::size_t i = 0; i < list.size(); ++i) result.push_back(map_tensors(list.get(i), f));
    return result;
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    auto result = c10::impl::GenericDict(dict.keyType(), dict.valueType());
    for (const auto& entry : dict) result.insert(entry.key(), map_tensors(entry.value(), f));
    return result;
  }
  return value;
}

}  // namespace

std::unique_ptr<ModuleAccess> access_to(const torch::jit::Module& module) {
  return std::make_unique<JitModuleAccess>(module);
}

}  // namespace detail

torch::jit::Module& Model<torch::jit::Module>::module() const {
  return *state().module().jit_module();
}

c10::IValue Model<torch::jit::Module>::forward_values(std::vector<c10::IValue> inputs) const {
  detail::ForwardScope scope(state());
  c10::IValue output = scope.run([&] { return module().forward(std::move(inputs)); });
  if (!scope.casts_outputs() && !scope.is_parallel()) return output;
  std::vector<at::Tensor> tensors;
  const auto collect = [&](const at::Tensor& tensor) {
    tensors.push_back(scope.casts_outputs() ? to_float32(tensor) : tensor);
    return tensor;
  };
  detail::map_tensors(output, collect);
  if (scope.is_parallel()) tensors = scope.finish(std::move(tensors));
  std::size_t next = 0;
  const auto replace = [&](const at::Tensor&) { return tensors[next++]; };
  return detail::map_tensors(output, replace);
}

}  // namespace accelerant
