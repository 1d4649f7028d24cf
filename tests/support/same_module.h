// Expects that two modules hold the same numbers.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

inline void expect_same_module(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto parameters = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), parameters[item.key()])) << item.key();
  }
  const auto buffers = b.named_buffers();
  for (const auto& item : a.named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), buffers[item.key()])) << item.key();
  }
}
