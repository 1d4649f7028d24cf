#include <accelerant/checkpoint/models.h>
#include <accelerant/paging/offload.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>

#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/same_module.h"
#include "support/temp_folder.h"

namespace {

using accelerant::load_checkpoint_in_model;
using accelerant::save_model;
using accelerant::StateDict;
namespace nn = torch::nn;

nn::Sequential net_to_place() {
  return nn::Sequential(nn::Linear(3, 5), nn::BatchNorm1d(5), nn::Linear(5, 2));
}

// A saved net, and another one of the same form.
class PlacedLoading : public testing::Test {
 protected:
  PlacedLoading() { save_model(saved_, path()); }

  std::string path() const { return folder_.path("model"); }

  // The message of the error that loading with this map throws. The other net must be unchanged.
  std::string error_with(const accelerant::DeviceMap& map) {
    const auto before = other_->parameters().front().clone();
    const std::string error =
        whole_error_of([&] { load_checkpoint_in_model(other_, path(), {.device_map = map}); });
    EXPECT_TRUE(torch::equal(other_->parameters().front(), before));
    return error;
  }

  TempFolder folder_;
  nn::Sequential saved_ = net_to_place();
  nn::Sequential other_ = net_to_place();
};

TEST_F(PlacedLoading, GoesWhereTheLongestNameSays) {
  load_checkpoint_in_model(other_, path(), {.device_map = {{"", "cpu"}, {"2", torch::kCPU}}});
  expect_same_module(*other_, *saved_);
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device for the rest";
  load_checkpoint_in_model(other_, path(),
                           {.device_map = {{"", "cpu"}, {"2", 0}, {"2.bias", "cpu"}}});
  const auto tensors = other_->named_parameters();
  EXPECT_TRUE(tensors["0.weight"].is_cpu());
  EXPECT_TRUE(tensors["2.weight"].is_cuda());
  EXPECT_TRUE(tensors["2.bias"].is_cpu());
  EXPECT_TRUE(torch::equal(tensors["2.weight"].cpu(), saved_->named_parameters()["2.weight"]));
}

TEST_F(PlacedLoading, NeedsADeviceForEveryTensorThatIsLoaded) {
  EXPECT_TRUE(contains(error_with({{"0", "cpu"}, {"1", "cpu"}}),
                       "2.weight, 2.bias doesn't have any device set.\n"));
  nn::Sequential larger = net_to_place();
  larger->push_back(nn::Linear(2, 2));  // is not in the files
  load_checkpoint_in_model(
      larger, path(), {.strict = false, .device_map = {{"0", "cpu"}, {"1", "cpu"}, {"2", "cpu"}}});
  EXPECT_TRUE(torch::equal(larger->parameters().front(), saved_->parameters().front()));
}

TEST_F(PlacedLoading, RefusesPlacesWithoutMemory) {
  const std::string disk = error_with({{"", "cpu"}, {"2", "disk"}});
  EXPECT_TRUE(contains(disk, "please pass along an `offload_folder`"));
  EXPECT_TRUE(contains(disk, "got none for 2.weight, 2.bias"));
  EXPECT_TRUE(contains(disk, "load_checkpoint_and_dispatch()"));
  EXPECT_TRUE(contains(error_with({{"", "meta"}}), "these are placed on 'meta'"));
  EXPECT_TRUE(contains(error_with({{"", "cpu"}, {"2.bias", 120}}),
                       "expected devices of this machine, got 2.bias on 120"));
}

// From there dispatch_model() uses them, as in Accelerate. The other checkpoint's values in the
// folder are not taken for them.
TEST_F(PlacedLoading, LeavesPartsOnDisk) {
  const accelerant::DeviceMap map = {{"", "cpu"}, {"0", "disk"}};
  const std::string folder = folder_.path("offload");
  save_model(net_to_place(), folder_.path("before"));
  load_checkpoint_in_model(net_to_place(), folder_.path("before"),
                           {.device_map = map, .offload_folder = folder});
  other_->eval();
  saved_->eval();
  for (const std::string& to : {folder, path()}) {
    load_checkpoint_in_model(other_, path(), {.device_map = map, .offload_folder = to});
    EXPECT_TRUE(other_->named_parameters()["0.weight"].is_meta());
    EXPECT_TRUE(torch::equal(other_->named_parameters()["2.weight"],
                             saved_->named_parameters()["2.weight"]));
    accelerant::dispatch_model(other_, map, {.offload_folder = to});
    const at::Tensor x = torch::randn({4, 3});
    EXPECT_TRUE(torch::equal(other_->forward(x), saved_->forward(x)));
    accelerant::undo_offload(other_);
  }
  EXPECT_FALSE(std::filesystem::exists(path() + "/offload.safetensors"));

  const nn::Sequential half = net_to_place();
  load_checkpoint_in_model(half, path(),
                           {.dtype = torch::kHalf, .device_map = map, .offload_folder = folder});
  EXPECT_EQ(half->named_parameters()["0.weight"].scalar_type(), torch::kHalf);
  accelerant::dispatch_model(half, map, {.offload_folder = folder});
  EXPECT_TRUE(torch::equal(half->named_parameters()["0.weight"].clone(),
                           saved_->named_parameters()["0.weight"].to(torch::kHalf)));
}

struct EmptyImpl : nn::Module {
  EmptyImpl() {
    register_parameter("weight", torch::empty({2, 3}, torch::kMeta));
    register_buffer("mean", torch::empty({3}, torch::kMeta));
  }
};
TORCH_MODULE(Empty);

TEST(EmptyModels, GetMemoryWhereTheMapSays) {
  const TempFolder folder;
  StateDict state;
  state.insert("weight", torch::randn({2, 3}));
  state.insert("mean", torch::randn({3}));
  save_model(state, folder.path());
  const Empty net;
  const at::Tensor weight = net->parameters().front();
  EXPECT_TRUE(contains(error_of([&] { load_checkpoint_in_model(net, folder.path()); }),
                       "the model has tensors on the meta device"));
  EXPECT_TRUE(weight.is_meta());
  load_checkpoint_in_model(net, folder.path(), {.device_map = {{"", "cpu"}}});
  EXPECT_TRUE(torch::equal(weight, state["weight"]));  // the same parameter as before
  EXPECT_TRUE(torch::equal(net->buffers().front(), state["mean"]));

  const Empty half;
  load_checkpoint_in_model(half, folder.path(),
                           {.dtype = torch::kHalf, .device_map = {{"", "cpu"}}});
  EXPECT_TRUE(torch::equal(half->parameters().front(), state["weight"].to(torch::kHalf)));
}

struct TiedImpl : nn::Module {
  TiedImpl() {
    in = register_module("in", nn::Linear(nn::LinearOptions(3, 3).bias(false)));
    out = register_module("out", nn::Linear(nn::LinearOptions(3, 3).bias(false)));
    out->weight.set_data(in->weight.data());
  }

  nn::Linear in = nullptr;
  nn::Linear out = nullptr;
};
TORCH_MODULE(Tied);

TEST(TiedModels, GoToThePlaceOfTheirFirstName) {
  const TempFolder folder;
  const Tied net;
  save_model(net, folder.path());
  const Tied other;
  const GatheredLog log;
  load_checkpoint_in_model(other, folder.path(), {.device_map = {{"in", "cpu"}}});
  EXPECT_TRUE(log.messages().empty());
  EXPECT_TRUE(torch::equal(other->out->weight, net->in->weight));
  EXPECT_EQ(other->in->weight.data_ptr(), other->out->weight.data_ptr());
  load_checkpoint_in_model(other, folder.path(), {.device_map = {{"in", "cpu"}, {"out", "disk"}}});
  ASSERT_EQ(log.messages().size(), 1u);
  EXPECT_TRUE(contains(
      log.text(), "Tied parameters are on different devices: in.weight: cpu, out.weight: disk"));
}

TEST_F(PlacedLoading, KeepsModulesInFloat32) {
  const auto types = [&](c10::ScalarType dtype, const std::vector<std::string>& kept) {
    nn::Sequential net = net_to_place();
    load_checkpoint_in_model(net, path(), {.dtype = dtype, .keep_in_fp32_modules = kept});
    const auto tensors = net->named_parameters();
    return std::vector<c10::ScalarType>{tensors["0.weight"].scalar_type(),
                                        tensors["1.weight"].scalar_type(),
                                        tensors["2.bias"].scalar_type()};
  };
  using Types = std::vector<c10::ScalarType>;
  EXPECT_EQ(types(torch::kHalf, {"1"}), (Types{torch::kHalf, torch::kFloat, torch::kHalf}));
  EXPECT_EQ(types(torch::kHalf, {"2.bias"}), (Types{torch::kHalf, torch::kHalf, torch::kFloat}));
  EXPECT_EQ(types(torch::kHalf, {"norm"}), (Types{torch::kHalf, torch::kHalf, torch::kHalf}));
  // As in Accelerate, float16 only: bfloat16 has the range of float32.
  EXPECT_EQ(types(torch::kBFloat16, {"1"}),
            (Types{torch::kBFloat16, torch::kBFloat16, torch::kBFloat16}));
}

}  // namespace
