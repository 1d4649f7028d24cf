// The inner loops of the fused step on the CPU, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/fused_rules.h"

namespace accelerant::kernels::cpu {

struct SquareSum {
  double sum;
  bool finite;  // whether all elements times the factor are finite
};

template <class T>
using UpdateLoop = void (*)(const Scalars<T>& scalars, const T* gradient, T* parameter, T* first,
                            T* second, T* third, std::int64_t size);

struct FusedLoops {
  UpdateLoop<float> update32[kRules];
  UpdateLoop<double> update64[kRules];

  SquareSum (*squares32)(const float* values, std::int64_t size, float factor);
  SquareSum (*squares64)(const double* values, std::int64_t size, double factor);

  void (*from_float16)(const std::uint16_t* values, float* result, std::int64_t size);
  void (*to_float16)(const float* values, std::uint16_t* result, std::int64_t size);
  void (*from_bfloat16)(const std::uint16_t* values, float* result, std::int64_t size);
  void (*to_bfloat16)(const float* values, std::uint16_t* result, std::int64_t size);
};

extern const FusedLoops fused_loops_default;
extern const FusedLoops fused_loops_avx2;  // these two exist only on x86
extern const FusedLoops fused_loops_avx512;

}  // namespace accelerant::kernels::cpu
