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
// branches and calls, so the compiler can vectorise it.
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
template <Writing writing, class T>
bool unscale_run(T* data, std::int64_t size, at::opmath_type<T> factor) {
  unsigned bad = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const auto result = static_cast<at::opmath_type<T>>(data[i]) * factor;
    if constexpr (writing == Writing::nothing) {
      bad |= is_finite(result) ? 0U : 1U;
    } else {
      data[i] = static_cast<T>(result);
      bad |= is_finite(data[i]) ? 0U : 1U;
    }
  }
  return bad == 0;
}

template <class T>
NonFiniteCount count_non_finite(const char* data, std::int64_t stride, std::int64_t size,
                                at::opmath_type<T> factor) {
  NonFiniteCount count{};
  for (std::int64_t i = 0; i < size; ++i) {
    const T value = *reinterpret_cast<const T*>(data + i * stride);
    const auto result = static_cast<at::opmath_type<T>>(value) * factor;
    if (is_finite(result)) continue;
    std::isnan(result) ? ++count.nan : ++count.inf;
  }
  return count;
}

template <Writing writing, class T>
NonFiniteCount unscale_row(char* data, std::int64_t stride, std::int64_t size,
                           at::opmath_type<T> factor) {
  bool finite = true;
  if (stride == sizeof(T)) {
    finite = unscale_run<writing>(reinterpret_cast<T*>(data), size, factor);
  } else {
    for (std::int64_t i = 0; i < size; ++i) {
      finite &= unscale_run<writing>(reinterpret_cast<T*>(data + i * stride), 1, factor);
    }
  }
  if (finite) return {};
  const bool holds_results = writing == Writing::unscaled_values;
  return count_non_finite<T>(data, stride, size, holds_results ? 1 : factor);
}

template <Writing writing, class T>
NonFiniteCount unscale_typed(const at::Tensor& gradient, float inv_scale) {
  std::atomic<std::uint64_t> inf{0};
  std::atomic<std::uint64_t> nan{0};
  // Rows of `size` elements: the first stride goes along a row, the second to the next row.
  const auto unscale_rows = [&](char** pointers, const std::int64_t* strides, std::int64_t size,
                                std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const NonFiniteCount count =
          unscale_row<writing, T>(pointers[0] + row * strides[1], strides[0], size, inv_scale);
      inf += count.inf;
      nan += count.nan;
    }
  };
  // TensorIterator coalesces dimensions and distributes the work over torch's own threads, which
  // avoids a second thread pool.
  at::TensorIterator::borrowing_nullary_op(gradient).for_each(unscale_rows);
  return {.inf = inf, .nan = nan};
}

}  // namespace

NonFiniteCount unscale(const at::Tensor& gradient, float inv_scale, Writing writing) {
  const bool write = writing == Writing::unscaled_values && inv_scale != 1.0F;
  NonFiniteCount count{};
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, gradient.scalar_type(), "accelerant::unscale", [&] {
        count = write ? unscale_typed<Writing::unscaled_values, scalar_t>(gradient, inv_scale)
                      : unscale_typed<Writing::nothing, scalar_t>(gradient, inv_scale);
      });
  return count;
}

}  // namespace accelerant::kernels::cpu
