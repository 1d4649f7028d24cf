#include "accelerant/paging/device_map.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/gathered_log.h"

namespace {

using namespace accelerant;
using Names = std::vector<std::string>;

// --- Models --------------------------------------------------------------------------------------

// 3·4 + 4, 4 weights and 4 + 4 + 8 bytes of buffers, 4·5 + 5: 236 bytes.
struct ThreeLayersImpl : torch::nn::Module {
  ThreeLayersImpl() {
    linear1 = register_module("linear1", torch::nn::Linear(3, 4));
    norm = register_module("batchnorm", torch::nn::BatchNorm1d(4));
    linear2 = register_module("linear2", torch::nn::Linear(4, 5));
  }

  torch::nn::Linear linear1 = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear linear2 = nullptr;
};
TORCH_MODULE(ThreeLayers);

// Two layers of 64 bytes behind a buffer of 8 bytes.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_buffer("mask", torch::zeros({2}));
    register_module("up", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
    register_module("down", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
  }
};
TORCH_MODULE(Block);

template <class T>
struct TypedImpl : torch::nn::Module {
  TypedImpl() { register_module("inside", torch::nn::Linear(2, 2)); }
};

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embed = register_module("embed", torch::nn::Embedding(10, 4));
    middle = register_module("middle", torch::nn::Linear(4, 4));
    register_module("head", std::make_shared<Head>(embed->weight));
  }

  struct Head : torch::nn::Module {
    explicit Head(const at::Tensor& weight) { register_parameter("weight", weight); }
  };

  torch::nn::Embedding embed = nullptr;
  torch::nn::Linear middle = nullptr;
};
TORCH_MODULE(Tied);

// --- Placement and MemorySize --------------------------------------------------------------------

TEST(Placement, NamesDevicesAndTheDisk) {
  EXPECT_EQ(Placement(3).gpu(), 3);
  EXPECT_EQ(Placement(3).text(), "3");
  EXPECT_EQ(Placement("cpu").device(), c10::Device(c10::kCPU));
  EXPECT_EQ(Placement("meta").device(), c10::Device(c10::kMeta));
  EXPECT_TRUE(Placement("disk").is_disk());
  EXPECT_FALSE(Placement("disk").device());
  EXPECT_EQ(Placement(c10::kCPU), Placement(std::string("cpu")));
  EXPECT_NE(Placement("meta"), Placement("disk"));
  EXPECT_EQ(Placement(c10::Device(Placement(1).device()->type(), 1)), Placement(1));
}

TEST(Placement, RefusesWhatIsNoDevice) {
  EXPECT_TRUE(contains(error_of([] { Placement("gpu"); }), "'gpu'"));
  EXPECT_TRUE(contains(error_of([] { Placement("0"); }), "a number"));
  EXPECT_TRUE(contains(error_of([] { Placement(-1); }), "-1"));
  EXPECT_TRUE(contains(error_of([] { Placement(1000); }), "1000"));
}

TEST(MemorySize, ReadsTheUnitsOfAccelerate) {
  EXPECT_EQ(MemorySize(5).bytes(), 5);
  EXPECT_EQ(MemorySize("2KiB").bytes(), 2048);
  EXPECT_EQ(MemorySize("5MB").bytes(), 5'000'000);
  EXPECT_EQ(MemorySize("5Mb").bytes(), 625'000);
  EXPECT_EQ(MemorySize("5mb").bytes(), 625'000);
  EXPECT_EQ(MemorySize("1gib").bytes(), int64_t{1} << 30);
  EXPECT_EQ(MemorySize(" 0.5 GB").bytes(), 500'000'000);
  EXPECT_EQ(MemorySize("1.5TiB").bytes(), 3 * (int64_t{1} << 39));
}

TEST(MemorySize, RefusesOtherTexts) {
  for (const char* text : {"5MBB", "5k0MB", "-1GB", "", "GB", "100", "nanGB", "infGB", "1e30GB"}) {
    EXPECT_EQ(error_of([&] { MemorySize{text}; }),
              "`size` " + std::string(text) +
                  " is not in a valid format. Use an integer for bytes, or a string with an unit "
                  "(like '5.0GB').");
  }
  EXPECT_TRUE(contains(error_of([] { MemorySize(-1); }), "-1"));
}

// --- DeviceMap -----------------------------------------------------------------------------------

TEST(DeviceMap, FindsTheLongestName) {
  const DeviceMap map = {{"", "disk"}, {"layers", 0}, {"layers.1", 1}, {"layers.1.weight", "cpu"}};
  EXPECT_EQ(map.placement_of("head.weight"), Placement("disk"));
  EXPECT_EQ(map.placement_of("layers"), Placement(0));
  EXPECT_EQ(map.placement_of("layers.10.weight"), Placement(0));
  EXPECT_EQ(map.placement_of("layers.1.bias"), Placement(1));
  EXPECT_EQ(map.placement_of("layers.1.weight"), Placement("cpu"));
  EXPECT_EQ(map.placement_of("layers.1.weights"), Placement(1));
  EXPECT_FALSE(DeviceMap({{"layers", 0}}).placement_of("layer"));
}

TEST(DeviceMap, KeepsTheOrderButComparesWithoutIt) {
  DeviceMap map = {{"b", 0}, {"a", "cpu"}};
  EXPECT_EQ(map.text(), "{'b': 0, 'a': 'cpu'}");
  EXPECT_EQ(map, (DeviceMap{{"a", "cpu"}, {"b", 0}}));
  map.set("b", 1);
  map.erase("a");
  EXPECT_EQ(map.text(), "{'b': 1}");
  EXPECT_TRUE(map.uses(1));
  EXPECT_FALSE(map.uses("cpu"));
}

TEST(DeviceMap, RefusesANameTwice) {
  EXPECT_TRUE(contains(error_of([] { DeviceMap({{"a", 0}, {"a", 1}}); }), "'a' occurs twice"));
}

TEST(DeviceMap, IsCleaned) {
  EXPECT_EQ(clean_device_map({{"a", 0}, {"b", 0}}), (DeviceMap{{"", 0}}));
  EXPECT_EQ(clean_device_map({{"a.1", 0}, {"a.2", 0}, {"a.3.c", 1}, {"a.3.d", 1}, {"b", 1}}),
            (DeviceMap{{"a.1", 0}, {"a.2", 0}, {"a.3", 1}, {"b", 1}}));
  EXPECT_EQ(clean_device_map({{"1", 0}, {"10.a", 1}, {"10.b", 1}}),
            (DeviceMap{{"1", 0}, {"10", 1}}));
  EXPECT_EQ(clean_device_map({}), DeviceMap());
}

TEST(DeviceMap, IsCheckedAgainstAModel) {
  const ThreeLayers net;
  const GatheredLog log;
  check_device_map(net, {{"", "cpu"}});
  check_device_map(net,
                   {{"linear1", 0}, {"batchnorm", 0}, {"linear2.weight", 1}, {"linear2.bias", 0}});
  EXPECT_TRUE(log.messages().empty());
  const std::string error = whole_error_of([&] {
    check_device_map(net, {{"linear1", 0}, {"linear2", 1}});
  });
  EXPECT_TRUE(contains(error,
                       "does not give any device for the following parameters: batchnorm.weight, "
                       "batchnorm.bias, batchnorm.running_mean, batchnorm.running_var, "
                       "batchnorm.num_batches_tracked"));
  check_device_map(net, {{"", "cpu"}, {"linear3", 0}});
  ASSERT_EQ(log.messages().size(), 1u);
  EXPECT_TRUE(
      contains(log.messages().front(), "do not match any submodules in the model: linear3"));
}

// --- Sizes ---------------------------------------------------------------------------------------

TEST(ModuleSizes, CountParametersAndBuffers) {
  const ThreeLayers net;
  const auto sizes = compute_module_sizes(net);
  EXPECT_EQ(sizes.at(""), 236);
  EXPECT_EQ(sizes.at("linear1"), 64);
  EXPECT_EQ(sizes.at("batchnorm"), 72);
  EXPECT_EQ(sizes.at("linear2.weight"), 80);
  const auto half = compute_module_sizes(*net, {.dtype = torch::kHalf});
  EXPECT_EQ(half.at(""), 122);  // num_batches_tracked is an integer and keeps its 8 bytes
  EXPECT_EQ(half.at("batchnorm"), 40);
  EXPECT_EQ(compute_module_sizes(net, {.dtype = torch::kDouble}).at(""), 236);
  EXPECT_EQ(compute_module_sizes(net, {.special_dtypes = {{"linear1.weight", torch::kHalf}}})
                .at("linear1"),
            40);
  EXPECT_EQ(compute_module_total_buffer_size(net), 40);
}

TEST(ModuleSizes, CountTiedParametersOnce) {
  const Tied net;
  EXPECT_EQ(compute_module_sizes(net).at(""), 160 + 80);
  EXPECT_FALSE(compute_module_sizes(net).contains("head"));
  EXPECT_EQ(find_tied_parameters(net), (std::vector<Names>{{"embed.weight", "head.weight"}}));
}

TEST(ModuleSizes, SeeTensorsWithTheSameMemoryAsTied) {
  torch::nn::Linear a(4, 4);
  torch::nn::Linear b(4, 4);
  b->weight.set_data(a->weight.data());
  const torch::nn::ModuleList net(a, b);
  EXPECT_EQ(find_tied_parameters(net), (std::vector<Names>{{"0.weight", "1.weight"}}));
  EXPECT_EQ(compute_module_sizes(net).at(""), 64 + 2 * 16);
}

TEST(ModuleSizes, WorkWithoutMemory) {
  struct Empty : torch::nn::Module {
    Empty() {
      for (const char* name : {"a", "b"}) {
        register_parameter(name, torch::empty({1'000'000, 1'000'000}, torch::kMeta));
      }
    }
  };
  EXPECT_EQ(compute_module_sizes(Empty()).at(""), 8'000'000'000'000);
  EXPECT_TRUE(find_tied_parameters(Empty()).empty());
}

TEST(ModuleSizes, LargestLayers) {
  const torch::nn::ModuleList net(Block{}, torch::nn::Linear(4, 4), Block{});
  const auto layers = get_max_layer_size(net);
  EXPECT_EQ(layers.bytes, 80);
  EXPECT_EQ(layers.names, (Names{"1"}));
  const auto blocks = get_max_layer_size(net, {"Block"});
  EXPECT_EQ(blocks.bytes, 136);
  EXPECT_EQ(blocks.names, (Names{"0", "2"}));
}

TEST(ModuleSizes, ClassesHaveShortNames) {
  const torch::nn::ModuleList net(torch::nn::Sequential(torch::nn::Linear(2, 2)),
                                  std::make_shared<TypedImpl<float>>());
  const auto largest = [&](const char* name) { return get_max_layer_size(net, {name}).names; };
  for (const char* name : {"Sequential", "SequentialImpl", "nn::Sequential",
                           "torch::nn::SequentialImpl", "torch::nn::Sequential"}) {
    EXPECT_EQ(largest(name), (Names{"0", "1.inside"})) << name;
  }
  EXPECT_EQ(largest("Typed"), (Names{"0.0", "1"}));
  EXPECT_EQ(largest("equential"), (Names{"0.0", "1.inside"}));
}

// --- Limits --------------------------------------------------------------------------------------

TEST(MaxMemory, ComesInTheOrderOfFilling) {
  const MaxMemory limits = {{"disk", 4}, {"cpu", 3}, {10, 2}, {2, "1KB"}};
  std::vector<std::string> order;
  for (const auto& [place, limit] : limits) order.push_back(place.text());
  EXPECT_EQ(order, (Names{"2", "10", "cpu", "disk"}));
}

TEST(MaxMemory, IsWhatIsFree) {
  const MaxMemory limits = get_max_memory();
  ASSERT_TRUE(limits.contains("cpu") || limits.contains(0));
  for (const auto& [place, limit] : limits) EXPECT_GT(limit.bytes(), 1 << 20) << place;
}

TEST(MaxMemory, RefusesOtherDevices) {
  EXPECT_TRUE(contains(error_of([] {
                         get_max_memory({{"meta", 1}});
                       }),
                       "Device meta is not recognized"));
}

TEST(MaxMemory, WarnsOfMissingGpus) {
  const GatheredLog log;
  EXPECT_EQ(get_max_memory({{98, 5}, {99, 5}}), (MaxMemory{{98, 5}, {99, 5}}));
  ASSERT_EQ(log.messages().size(), 1u);
  EXPECT_TRUE(contains(log.text(), "max_memory has limits for 98, 99, but this machine has"));
}

TEST(BalancedMemory, SharesAmongGpus) {
  const ThreeLayers net;
  const auto balanced = [&](const MaxMemory& limits, bool low_zero = false) {
    return get_balanced_memory(net, {.max_memory = limits, .low_zero = low_zero});
  };
  EXPECT_EQ(balanced({{0, 200}, {1, 200}}), (MaxMemory{{0, 200}, {1, 200}}));
  EXPECT_EQ(balanced({{0, 300}, {1, 300}}), (MaxMemory{{0, 215}, {1, 300}}));
  EXPECT_EQ(balanced({{0, 300}, {1, 500}}, /*low_zero=*/true), (MaxMemory{{0, 0}, {1, 500}}));
  EXPECT_EQ(balanced({{0, 300}, {"cpu", 1000}}), (MaxMemory{{0, 300}, {"cpu", 1000}}));
  EXPECT_EQ(balanced({{0, 0}, {1, 300}, {2, 300}}), (MaxMemory{{0, 0}, {1, 215}, {2, 300}}));
  EXPECT_EQ(balanced({{"cpu", 100}, {"disk", 100}}), (MaxMemory{{"cpu", 100}, {"disk", 100}}));
}

// --- Making maps ---------------------------------------------------------------------------------

TEST(AutoDeviceMap, FillsDevicesInOrder) {
  const ThreeLayers net;
  EXPECT_EQ(infer_auto_device_map(net, {.max_memory = {{0, 200}, {1, 200}}}),
            (DeviceMap{{"linear1", 0}, {"batchnorm", 1}, {"linear2", 1}}));
  EXPECT_EQ(infer_auto_device_map(net, {.max_memory = {{0, 1000}}}), (DeviceMap{{"", 0}}));
  EXPECT_EQ(infer_auto_device_map(net, {.max_memory = {{"cpu", 0}}}), (DeviceMap{{"", "disk"}}));
  EXPECT_EQ(infer_auto_device_map(net, {.max_memory = {{0, 1000}}, .clean_result = false}).text(),
            "{'linear1': 0, 'batchnorm': 0, 'linear2': 0}");
}

TEST(AutoDeviceMap, DividesModulesUnlessTheirClassForbids) {
  // As in Accelerate's own tests: three models of 236 bytes each.
  const torch::nn::ModuleList net(ThreeLayers{}, ThreeLayers{}, ThreeLayers{});
  const MaxMemory limits = {{0, 500}, {1, 500}};
  EXPECT_EQ(
      infer_auto_device_map(net, {.max_memory = limits}),
      (DeviceMap{{"0", 0}, {"1.linear1", 0}, {"1.batchnorm", 0}, {"1.linear2", 1}, {"2", 1}}));
  EXPECT_EQ(infer_auto_device_map(
                net, {.max_memory = limits, .no_split_module_classes = {"ThreeLayers"}}),
            (DeviceMap{{"0", 0}, {"1", 1}, {"2", 1}}));
}

TEST(AutoDeviceMap, KeepsTiedParametersTogether) {
  const Tied net;
  const DeviceMap map = infer_auto_device_map(net, {.max_memory = {{0, 340}, {1, 340}}});
  EXPECT_EQ(map.placement_of("embed.weight"), map.placement_of("head.weight"));
}

// Accelerate fails with "list index out of range" here.
TEST(AutoDeviceMap, TiesOfTheModelsOwnParameters) {
  struct Own : torch::nn::Module {
    Own() {
      layer = register_module("layer", torch::nn::Linear(4, 4));
      register_parameter("table", layer->weight);
    }
    torch::nn::Linear layer = nullptr;
  };
  const Own net;
  EXPECT_EQ(infer_auto_device_map(net, {.max_memory = {{"cpu", 1000}}}), (DeviceMap{{"", "cpu"}}));
}

TEST(AutoDeviceMap, FallsBackToASmallerModule) {
  const torch::nn::ModuleList net(torch::nn::Linear(10, 20), torch::nn::Linear(2, 2),
                                  torch::nn::Linear(10, 20));
  const MaxMemory limits = {{0, 1000}, {"cpu", 5000}};
  EXPECT_FALSE(infer_auto_device_map(net, {.max_memory = limits}).uses(0));
  EXPECT_EQ(infer_auto_device_map(net, {.max_memory = limits, .fallback_allocation = true}),
            (DeviceMap{{"1", 0}, {"0", "cpu"}, {"2", "cpu"}}));
}

TEST(AutoDeviceMap, WarnsIfBuffersFitNowhere) {
  const torch::nn::ModuleList net(torch::nn::Linear(10, 10), torch::nn::BatchNorm1d(200));
  const MaxMemory limits = {{0, 900}, {"cpu", 10000}};
  const auto warnings = [&](bool offload_buffers) {
    const GatheredLog log;
    infer_auto_device_map(net, {.max_memory = limits, .offload_buffers = offload_buffers});
    std::vector<std::string> found;
    for (const std::string& text : log.messages()) {
      if (text.find("of buffer for offloaded layers") != std::string::npos) found.push_back(text);
    }
    return found;
  };
  ASSERT_EQ(warnings(false).size(), 1u);
  EXPECT_TRUE(contains(warnings(false).front(), "requires 1608 bytes"));
  EXPECT_TRUE(warnings(true).empty());
}

TEST(AutoDeviceMap, SaysWhatItDoesIfAsked) {
  const GatheredLog log;
  infer_auto_device_map(ThreeLayers{}, {.max_memory = {{0, 200}, {1, 200}}, .verbose = true});
  EXPECT_TRUE(contains(log.text(), "device map: linear1 (64 bytes) on 0"));
  EXPECT_TRUE(
      contains(log.text(), "batchnorm (72 bytes) does not fit on 0, which has 36 bytes left"));
}

// --- By the name of a strategy -------------------------------------------------------------------

TEST(DeviceMapStrategy, BalancesOrNot) {
  const ThreeLayers net;
  const DeviceMapOptions options{.max_memory = {{0, 300}, {1, 300}}};
  const DeviceMap sequential = make_device_map(net, "sequential", options);
  EXPECT_EQ(sequential, infer_auto_device_map(net, options));
  const DeviceMap balanced = make_device_map(net, "balanced", options);
  EXPECT_EQ(balanced, infer_auto_device_map(net, {.max_memory = {{0, 215}, {1, 300}}}));
  EXPECT_EQ(balanced, make_device_map(net, "auto", options));
  EXPECT_EQ(make_device_map(net, "balanced_low_0", options),
            infer_auto_device_map(net, {.max_memory = {{0, 0}, {1, 300}}}));
}

TEST(DeviceMapStrategy, CoversBuffersOfDividedModules) {
  const torch::nn::ModuleList net(Block{}, Block{});
  const DeviceMapOptions options{.max_memory = {{0, 140}, {"cpu", 1000}}};
  const DeviceMap inferred = infer_auto_device_map(net, options);
  ASSERT_FALSE(inferred.placement_of("0.mask")) << inferred;
  const DeviceMap map = make_device_map(net, "sequential", options);
  EXPECT_EQ(map.placement_of("0.mask"), map.placement_of("0.up.weight")) << map;
  check_device_map(net, map);
}

TEST(DeviceMapStrategy, IsAnOption) {
  const ThreeLayers net;
  const DeviceMapOptions options{.max_memory = {{"cpu", 1000}}};
  EXPECT_EQ(DeviceMapChoice("auto").resolve(net, options), (DeviceMap{{"", "cpu"}}));
  EXPECT_EQ((DeviceMapChoice{{"", 0}}).resolve(net), (DeviceMap{{"", 0}}));
  EXPECT_TRUE(DeviceMapChoice().empty());
  EXPECT_TRUE(contains(error_of([&] {
                         DeviceMapChoice(DeviceMap{{"linear1", 0}}).resolve(net);
                       }),
                       "does not give any device"));
  const std::string error = error_of([] { DeviceMapChoice("gpu"); });
  EXPECT_TRUE(contains(error, "'auto', 'balanced', 'balanced_low_0' or 'sequential', got 'gpu'"));
}

}  // namespace
