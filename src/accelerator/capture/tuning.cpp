#include "accelerator/capture/tuning.h"

#include <ATen/Context.h>

namespace accelerant::detail {

CudnnSearch::CudnnSearch(bool on) {
  at::Context& context = at::globalContext();
  is_on_ = on && !context.benchmarkCuDNN() && !context.deterministicCuDNN() &&
           !context.deterministicAlgorithms();
  if (is_on_) context.setBenchmarkCuDNN(true);
}

CudnnSearch::~CudnnSearch() {
  if (is_on_) at::globalContext().setBenchmarkCuDNN(false);
}

}  // namespace accelerant::detail
