// The states of the random generators that this process uses, to draw the same numbers again.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace accelerant::nn {

class GeneratorStates {
 public:
  // The CPU, and each GPU that this process has used.
  static GeneratorStates capture();

  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace accelerant::nn
