// Fingerprints: numbers that change when something changes, so that values need not be compared.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accelerant::detail {

inline void mix(std::size_t& fingerprint, std::size_t value) {
  fingerprint = (fingerprint ^ value) * 0x100000001b3ULL;
}

inline void mix_gradient(std::size_t& fingerprint, const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return;
  mix(fingerprint, reinterpret_cast<std::uintptr_t>(gradient.unsafeGetTensorImpl()));
  mix(fingerprint, static_cast<std::size_t>(gradient._version()) + 1);
}

// Changes when a gradient is added, removed or written to. 0 if there are no gradients.
inline std::size_t fingerprint_of_gradients(const std::vector<at::Tensor>& parameters) {
  std::size_t fingerprint = 0;
  for (const at::Tensor& parameter : parameters) mix_gradient(fingerprint, parameter);
  return fingerprint;
}

}  // namespace accelerant::detail
