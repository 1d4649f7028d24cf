// The float32 copy of a 16-bit parameter, kept with what an optimizer remembers of the parameter.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <string>

namespace accelerant::optim::detail {

struct MasterWeight {
  virtual ~MasterWeight() = default;

  at::Tensor master_param;  // undefined: there is none
};

inline constexpr const char* kMasterName = "master_param";

// The state of one of torch::optim's optimizers, with room for it. torch::save writes it, but
// torch::load makes states of the plain class, and so begins with the 16-bit values again.
template <class State>
struct WithMaster final : public State, public MasterWeight {
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override {
    return std::make_unique<WithMaster>(*this);
  }

  using State::serialize;
  void serialize(torch::serialize::OutputArchive& archive) const override {
    State::serialize(archive);
    if (master_param.defined()) archive.write(kMasterName, master_param);
  }
};

}  // namespace accelerant::optim::detail
