// The final check of every test of several processes: all must end with the same model, bit by bit.
#pragma once

#include <ATen/core/Tensor.h>
#include <accelerant/core/error.h>
#include <accelerant/dist/world.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dist/model_check.h"

inline uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  uint64_t hash = 14695981039346656037U;
  const auto* bytes = static_cast<const unsigned char*>(plain.const_data_ptr());
  for (size_t i = 0; i < plain.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  return hash;
}

// A collective call. If tensors differ, it fails on every rank and names them by their place in the
// list.
inline void expect_same_on_all_ranks(const accelerant::dist::World& world,
                                     const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> lines;
  for (const at::Tensor& tensor : tensors) {
    lines.push_back(c10::str("tensor ", lines.size(), "\t", hash_of(tensor)));
  }
  try {
    accelerant::dist::require_same_model(world, lines);
  } catch (const accelerant::Error& error) {
    ADD_FAILURE() << error.what();
  }
}
