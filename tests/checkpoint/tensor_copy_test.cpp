#include "checkpoint/tensor_copy.h"

#include <accelerant/format/safetensors.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using accelerant::checkpoint::open_weight_file;
using accelerant::checkpoint::read_tensors;
namespace format = accelerant::format;

TEST(ReadTensors, OtherShapesAndTypesThatTorchLacksAreErrorsBeforeAnythingIsFilled) {
  const TempFolder folder;
  const std::string path = folder.path("model.safetensors");
  const std::vector<float> ones(12, 1);
  const auto bytes = std::as_bytes(std::span(ones));
  // In the order of the file.
  format::save_safetensors(
      path, {{.name = "floats", .dtype = format::DType::f32, .shape = {3, 4}, .data = bytes},
             {.name = "packed", .dtype = format::DType::f4, .shape = {96}, .data = bytes}});
  const auto file = open_weight_file(path);
  const auto& floats = file->tensors().at(0);
  const auto& packed = file->tensors().at(1);
  const at::Tensor good = torch::zeros({3, 4});
  const auto error_with = [&](const auto& stored, const at::Tensor& target) {
    return whole_error_of([&] {
      read_tensors({{file.get(), &floats, good}, {file.get(), &stored, target}});
    });
  };
  for (const at::Tensor& target :
       {torch::zeros({3, 3}), torch::zeros({4, 3}), torch::zeros({3, 5}), torch::zeros({})}) {
    const std::string error = error_with(floats, target);
    EXPECT_TRUE(contains(error, path + ": tensor 'floats' cannot be loaded"));
    EXPECT_TRUE(contains(error, "F32 [3, 4]"));
  }
  for (const auto type : {torch::kFloat, torch::kByte}) {
    EXPECT_TRUE(contains(error_with(packed, torch::zeros({96}, type)), "F4 [96]"));
  }
  EXPECT_TRUE(good.eq(0).all().item<bool>());
  read_tensors({{file.get(), &floats, good}});
  EXPECT_TRUE(good.eq(1).all().item<bool>());
}

}  // namespace
