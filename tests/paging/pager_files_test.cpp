// Models that stay in their files.
#include <torch/torch.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "accelerant/format/safetensors.h"
#include "paging/mapped_file.h"
#include "paging/paged_training.h"
#include "support/expect_error.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace {

using accelerant::format::DType;
using accelerant::format::SafetensorsFile;
using accelerant::paging::FileTensor;
using accelerant::paging::MappedFile;
using accelerant::paging::ModelFiles;
using accelerant::paging::Pager;
using accelerant::paging::UnitPlan;

// A stack of square layers whose parameters have no memory.
struct EmptyStack : torch::nn::Module {
  EmptyStack(int layers, int64_t width) {
    for (int i = 0; i < layers; ++i) {
      const auto empty = torch::empty({width, width}, at::kMeta);
      weights.push_back(register_module("layer" + std::to_string(i), std::make_shared<Parts>())
                            ->add("weight", empty));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& weight : weights) x = torch::tanh(x.mm(weight));
    return x;
  }
  std::vector<at::Tensor> weights;
};

class PagerFiles : public OnDevice {
 protected:
  // Writes the file of such a stack, and returns its values.
  std::vector<at::Tensor> write(int layers, int64_t width) const {
    torch::manual_seed(3);
    std::vector<at::Tensor> values;
    std::vector<accelerant::format::TensorToWrite> tensors;
    for (int i = 0; i < layers; ++i) {
      values.push_back(torch::randn({width, width}) / 8);
      tensors.push_back({.name = "root.layer" + std::to_string(i) + ".weight",
                         .dtype = DType::f32,
                         .shape = {width, width},
                         .data = {static_cast<const std::byte*>(values.back().const_data_ptr()),
                                  values.back().nbytes()}});
    }
    accelerant::format::save_safetensors(path, std::move(tensors));
    return values;
  }

  std::vector<UnitPlan> units_of(const torch::nn::Module& module) const {
    const auto file = std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
    std::map<std::string, FileTensor> tensors;
    for (const auto name : file->names()) {
      tensors[std::string(name)] = {.file = file, .name = std::string(name)};
    }
    const auto files = std::make_shared<ModelFiles>(std::move(tensors));
    auto units = unit_per_module(module);
    for (UnitPlan& unit : units) unit.source = std::make_shared<MappedFile>(files);
    return units;
  }

  std::string contents() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempFolder folder;
  std::string path = folder.path("model.safetensors");
};
ON_EVERY_DEVICE(PagerFiles);

TEST_P(PagerFiles, EmptyModelsComputeFromTheirFile) {
  const auto values = write(4, 32);
  auto x = torch::randn({2, 32}, options());
  auto expected = x;
  for (const auto& value : values) expected = torch::tanh(expected.mm(value.to(device())));
  for (const uint64_t budget : {uint64_t{0}, uint64_t{4096}, uint64_t{1} << 30}) {
    for (const bool zero_copy : {true, false}) {
      const auto model = std::make_shared<EmptyStack>(4, 32);
      Pager pager(units_of(*model), {.device = device(), .budget = budget, .zero_copy = zero_copy});
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(model->forward(x), expected));
      pager.detach();
      EXPECT_TRUE(model->weights[0].is_cpu());
      EXPECT_TRUE(torch::equal(model->weights[0], values[0]));
    }
  }
}

TEST_P(PagerFiles, DetachingCanGoToTheDevice) {
  const auto values = write(2, 32);
  const auto model = std::make_shared<EmptyStack>(2, 32);
  Pager pager(units_of(*model), {.device = device()});
  pager.detach(device());
  EXPECT_EQ(model->weights[1].device(), device());
  EXPECT_TRUE(torch::equal(model->weights[1].cpu(), values[1]));
}

TEST_P(PagerFiles, LargeTensorsGoThroughTheBufferInPieces) {
  const auto values = write(1, 2300);  // 20 MiB and a bit
  const auto model = std::make_shared<EmptyStack>(1, 2300);
  Pager pager(units_of(*model), {.device = device(), .zero_copy = false});
  EXPECT_TRUE(torch::equal(model->weights[0].cpu(), values[0]));
}

TEST_P(PagerFiles, ChangesStayInMemory) {
  const auto values = write(3, 32);
  const std::string before = contents();
  const at::NoGradGuard no_grad;
  for (const bool zero_copy : {true, false}) {
    const auto model = std::make_shared<EmptyStack>(3, 32);
    Pager pager(units_of(*model), {.device = device(), .budget = 0, .zero_copy = zero_copy});
    for (int i = 0; i < 3; ++i) {
      for (const auto& weight : model->weights) weight.mul_(2);
    }
    EXPECT_TRUE(torch::equal(model->weights[1].cpu(), values[1] * 8));
    pager.detach();
    EXPECT_TRUE(torch::equal(model->weights[2], values[2] * 8));
  }
  EXPECT_EQ(contents(), before);
}

TEST_P(PagerFiles, FilesThatDoNotFitAreRefusedAtOnce) {
  write(2, 32);
  const auto wide = std::make_shared<EmptyStack>(2, 33);
  std::string message = whole_error_of([&] { Pager pager(units_of(*wide)); });
  EXPECT_TRUE(contains(message, "[33, 33]"));
  EXPECT_TRUE(contains(message, "F32 [32, 32]"));
  const auto deep = std::make_shared<EmptyStack>(3, 32);
  message = whole_error_of([&] { Pager pager(units_of(*deep)); });
  EXPECT_TRUE(contains(message, "\"root.layer2.weight\""));
  EXPECT_TRUE(deep->weights[0].is_meta());
}

// --- Files that change all the same --------------------------------------------------------------

TEST_P(PagerFiles, ATruncatedFileIsAnErrorUntilItIsWholeAgain) {
  const auto values = write(1, 2300);
  const std::string whole = contents();
  const auto model = std::make_shared<EmptyStack>(1, 2300);
  Pager pager(units_of(*model), {.device = device(), .zero_copy = false});
  for (int i = 0; i < 3; ++i) {  // more pieces than there are buffers
    ASSERT_EQ(::truncate(path.c_str(), 4096), 0);
    EXPECT_TRUE(contains(whole_error_of([&] { model->weights[0].sum(); }), "has shrunk"));
  }
  std::ofstream(path, std::ios::binary) << whole;
  EXPECT_TRUE(torch::equal(model->weights[0].cpu(), values[0]));
}

TEST_P(PagerFiles, DetachingReadsTheFileInsteadOfItsMapping) {
  const auto values = write(2, 64);
  const std::string whole = contents();
  const auto model = std::make_shared<EmptyStack>(2, 64);
  Pager pager(units_of(*model), {.device = device()});
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  EXPECT_TRUE(contains(whole_error_of([&] { pager.detach(); }), "has shrunk"));
  std::ofstream(path, std::ios::binary) << whole;
  pager.detach();
  EXPECT_TRUE(torch::equal(model->weights[1], values[1]));
}

TEST_P(PagerFiles, SoDoesTheFirstChange) {
  const auto values = write(1, 64);
  const auto model = std::make_shared<EmptyStack>(1, 64);
  Pager pager(units_of(*model), {.device = device()});
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(contains(whole_error_of([&] { model->weights[0].add_(1); }), "has shrunk"));
}

TEST_P(PagerFiles, GradientsWithoutValuesAreDropped) {
  write(1, 32);
  const auto model = std::make_shared<EmptyStack>(1, 32);
  const at::Tensor loss = model->forward(torch::ones({2, 32}, at::kMeta)).sum();
  loss.backward();
  ASSERT_TRUE(model->weights[0].grad().is_meta());
  Pager pager(units_of(*model), {.device = device()});
  EXPECT_FALSE(model->weights[0].grad().defined());
  model->forward(torch::ones({2, 32}, options())).sum().backward();
  EXPECT_EQ(model->weights[0].grad().device(), device());
}

// In kB.
int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "RssAnon:") continue;
    int64_t value = 0;
    status >> value;
    return value;
  }
  return 0;
}

TEST_P(PagerFiles, MemoryStaysWithinTheBudget) {
  if (on_cuda()) GTEST_SKIP() << "counts memory of the host";
  if (is_sanitized) GTEST_SKIP() << "sanitizers bring a malloc of their own";
  const int layers = 24;
  const int64_t width = 1024;  // 4 MiB each
  write(layers, width);
  const auto x = torch::randn({2, width});
  const auto grown = [&](bool zero_copy) {
    const auto model = std::make_shared<EmptyStack>(layers, width);
    const at::NoGradGuard no_grad;
    const int64_t before = anonymous_memory();
    Pager pager(units_of(*model), {.budget = 12 << 20, .zero_copy = zero_copy});
    for (int i = 0; i < 2; ++i) model->forward(x);
    return anonymous_memory() - before;
  };
  grown(false);  // threads and buffers of the first products
  EXPECT_LT(grown(false), 32 << 10);
  EXPECT_LT(grown(true), 16 << 10);
}

}  // namespace
