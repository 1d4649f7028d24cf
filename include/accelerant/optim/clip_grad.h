// Gradient clipping, with the meaning of torch.nn.utils.clip_grad_norm_ and its relatives.
//
// Unlike torch::nn::utils in C++, nothing here waits for the device (except error_if_nonfinite, and
// gradients on several devices with the first on the CPU), and the norm of 16-bit gradients is
// computed in float32. Parameters without a gradient are skipped; gradients may be on several
// devices and may be sparse.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerant {

struct NormOptions {
  // The p of the p-norm: any number, including infinity (the largest element), 0 and negative ones.
  // Default: 2.
  double norm_type = 2.0;

  // Throw Error if the norm is inf or nan. Waits for the device. Default: false.
  bool error_if_nonfinite = false;
};

// The norm of all elements of all tensors together: zero-dimensional, on the first tensor's device,
// in float32 (float64 if a tensor is). Zero for an empty list.
at::Tensor get_total_norm(at::TensorList tensors, const NormOptions& options = {});

// max_norm and clip_value below must be 0 or more; otherwise the functions throw Error.

// Scales the gradients by max_norm / (total_norm + 1e-6) if that is below 1.
void clip_grads_with_norm_(at::TensorList parameters, double max_norm,
                           const at::Tensor& total_norm);

// Both: limits the norm of all gradients to max_norm and returns the norm before.
at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm,
                           const NormOptions& options = {});

// Clamps every element of every gradient to [-clip_value, clip_value]. nan stays nan.
void clip_grad_value_(at::TensorList parameters, double clip_value);

}  // namespace accelerant
