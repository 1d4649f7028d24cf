#include "kernels/cpu/unscale.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace accelerant::kernels::cpu {
namespace {

// The bits of the exponent: all set means inf or nan. Comparing bits keeps the hot loop free of
// branches and calls, so that the compiler turns it into vector code.
template <class T>
constexpr auto exponent_bits() {
  if constexpr (std::is_same_v<T, double>) {
    return std::uint64_t{0x7ff0000000000000};
  } else if constexpr (std::is_same_v<T, float>) {
    return std::uint32_t{0x7f800000};
  } else if constexpr (std::is_same_v<T, at::BFloat16>) {
    return std::uint16_t{0x7f80};
  } else {
    return std::uint16_t{0x7c00};
  }
}

template <class T>
bool is_finite(T value) {
  constexpr auto mask = exponent_bits<T>();
  std::remove_const_t<decltype(mask)> bits;
  std::memcpy(&bits, &value, sizeof(value));
  return (bits & mask) != mask;
}

// Returns whether all results are finite.
template <class T>
bool unscale_run(T* data, std::int64_t size, float inv_scale) {
  using Math = at::opmath_type<T>;
  const auto factor = static_cast<Math>(inv_scale);
  unsigned bad = 0;
  if (inv_scale == 1.0F) {
    for (std::int64_t i = 0; i < size; ++i) bad |= is_finite(data[i]) ? 0U : 1U;
  } else {
    for (std::int64_t i = 0; i < size; ++i) {
      data[i] = static_cast<T>(static_cast<Math>(data[i]) * factor);
      bad |= is_finite(data[i]) ? 0U : 1U;
    }
  }
  return bad == 0;
}

template <class T>
NonFiniteCount count_non_finite(const char* data, std::int64_t stride, std::int64_t size) {
  NonFiniteCount count{};
  for (std::int64_t i = 0; i < size; ++i) {
    const T value = *reinterpret_cast<const T*>(data + i * stride);
    if (is_finite(value)) continue;
    std::isnan(static_cast<at::opmath_type<T>>(value)) ? ++count.nan : ++count.inf;
  }
  return count;
}

template <class T>
NonFiniteCount unscale_row(char* data, std::int64_t stride, std::int64_t size, float inv_scale) {
  bool finite = true;
  if (stride == sizeof(T)) {
    finite = unscale_run(reinterpret_cast<T*>(data), size, inv_scale);
  } else {
    for (std::int64_t i = 0; i < size; ++i) {
      finite &= unscale_run(reinterpret_cast<T*>(data + i * stride), 1, inv_scale);
    }
  }
  return finite ? NonFiniteCount{} : count_non_finite<T>(data, stride, size);
}

template <class T>
NonFiniteCount unscale_typed(const at::Tensor& gradient, float inv_scale) {
  std::atomic<std::uint64_t> inf{0};
  std::atomic<std::uint64_t> nan{0};
  // Rows of `size` elements: the first stride leads along a row, the second to the next row.
  const auto unscale_rows = [&](char** pointers, const std::int64_t* strides, std::int64_t size,
                                std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const NonFiniteCount count =
          unscale_row<T>(pointers[0] + row * strides[1], strides[0], size, inv_scale);
      inf += count.inf;
      nan += count.nan;
    }
  };
  // TensorIterator coalesces dimensions and shares the work among torch's own threads, so that no
  // second thread pool comes into the process.
  at::TensorIterator::borrowing_nullary_op(gradient).for_each(unscale_rows);
  return {.inf = inf, .nan = nan};
}

}  // namespace

NonFiniteCount unscale(const at::Tensor& gradient, float inv_scale) {
  NonFiniteCount count{};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, gradient.scalar_type(),
                                  "accelerant::unscale",
                                  [&] { count = unscale_typed<scalar_t>(gradient, inv_scale); });
  return count;
}

}  // namespace accelerant::kernels::cpu
