// Keeps paged parameters in memory for code that does not go through operators: what reads
// data_ptr() or accessors, kernels and collectives that run on after the call, CUDA graphs, saves.
//
//   {
//     const Residency residency({weight});
//     write(file, weight.const_data_ptr(), weight.nbytes());
//   }
//
// The memory stays where it is until the object ends, on every path, beyond the budget if need be.
// Tensors that are not paged, or have no memory, are ignored, so code need not know whether a
// parameter is paged. Hold one parameter at a time where that suffices.
//
// On an accelerator the constructor waits until the contents have arrived, and the memory is not
// reused before the work that was queued by the end of the object on the stream that was current at
// its beginning is done. Work on other streams must be waited for by the owner of the object. CUDA
// graphs use the addresses that they have captured: hold a Residency, made before the capture, as
// long as the graph. Operators that are captured without one throw Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "paging/pins.h"

namespace torch::nn {
class Module;
}

namespace accelerant::paging {

enum class Access {
  read,
  write,  // what is in memory at the end counts as changed, and is stored
};

class [[nodiscard]] Residency {
 public:
  explicit Residency(at::TensorList tensors, Access access = Access::read);
  explicit Residency(std::initializer_list<at::Tensor> tensors, Access access = Access::read)
      : Residency(at::TensorList(tensors), access) {}

  // All parameters of a module.
  explicit Residency(const torch::nn::Module& module, Access access = Access::read);

  ~Residency();
  Residency(Residency&&) noexcept = default;
  Residency& operator=(Residency&&) = delete;

 private:
  void hold(at::TensorList tensors, Access access);

  Pins pins_;
};

// Whether a tensor is a paged parameter or an alias of one.
bool is_paged(const at::Tensor& tensor);

}  // namespace accelerant::paging
