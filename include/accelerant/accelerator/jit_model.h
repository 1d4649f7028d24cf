// A prepared torch::jit::Module, as torch::jit::load gives it.
//
//   auto net = torch::jit::load("net.pt");
//   auto model = accelerator.prepare_model(net);
//   auto output = model(images).toTensor();
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "accelerant/accelerator/model.h"

namespace torch::jit {
struct Module;
}

namespace accelerant {

template <>
class Model<torch::jit::Module> : public ModelBase {
 public:
  Model() = default;

  // Calls the module's forward. Tensors of 16 bits in the output, nested ones too, come back as
  // float32 under mixed precision, unless PrepareModelOptions::float32_outputs is false.
  template <class... Args>
  c10::IValue operator()(Args&&... args) const {
    return forward_values({c10::IValue(std::forward<Args>(args))...});
  }

  template <class... Args>
  c10::IValue forward(Args&&... args) const {
    return (*this)(std::forward<Args>(args)...);
  }

  // As torch::jit::Module::forward takes them.
  c10::IValue operator()(std::vector<c10::IValue> inputs) const {
    return forward_values(std::move(inputs));
  }
  c10::IValue forward(std::vector<c10::IValue> inputs) const {
    return forward_values(std::move(inputs));
  }

  // The original. The prepared model shares its parameters.
  torch::jit::Module& module() const;

 private:
  friend class Accelerator;

  explicit Model(std::shared_ptr<detail::ModelState> state) : ModelBase(std::move(state)) {}

  c10::IValue forward_values(std::vector<c10::IValue> inputs) const;
};

}  // namespace accelerant
