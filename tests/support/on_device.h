// Tests that run on every kind of device and skip the kinds that are absent.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

class OnDevice : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }

  at::Device device() const { return on_cuda() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU); }
  bool on_cuda() const { return GetParam() == at::kCUDA; }

  // float32 on the device under test.
  at::TensorOptions options(at::ScalarType type = at::kFloat) const {
    return at::TensorOptions().device(device()).dtype(type);
  }

  at::Tensor full(at::IntArrayRef shape, double value, at::ScalarType type = at::kFloat) const {
    return torch::full(shape, value, options(type));
  }
};

inline std::string name_of_device(const testing::TestParamInfo<at::DeviceType>& test) {
  return test.param == at::kCPU ? "cpu" : "cuda";
}

// Runs the tests of a suite on the CPU and on CUDA.
#define ON_EVERY_DEVICE(Suite) \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::Values(at::kCPU, at::kCUDA), name_of_device)
