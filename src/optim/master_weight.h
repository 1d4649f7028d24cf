// The float32 copy of a 16-bit parameter, kept with the optimizer's state of the parameter.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <string>

namespace accelerant::optim::detail {

struct MasterWeight {
  virtual ~MasterWeight() = default;

  at::Tensor master_param;  // undefined if there is none
};

inline constexpr const char* kMasterName = "master_param";

// The state of a torch::optim optimizer, with a field for the master copy. torch::save writes it,
// but torch::load creates states of the plain class, and so restarts from the 16-bit values.
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
