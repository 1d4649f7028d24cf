#include "accelerant/paging/empty_weights.h"

#include <ATen/CPUGeneratorImpl.h>
#include <accelerant/checkpoint/models.h>
#include <accelerant/paging/offload.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "paging/offload/offloaded_model.h"
#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/temp_folder.h"

namespace {

using accelerant::align_module_device;
using accelerant::empty_tensors;
using accelerant::init_empty_weights;
using accelerant::init_on_device;
using accelerant::materialize;

using MakeModule = std::function<std::shared_ptr<torch::nn::Module>()>;

template <class Holder, class... Arguments>
MakeModule maker(Arguments... arguments) {
  return [=] { return Holder(arguments...).ptr(); };
}

// Every module of libtorch that has parameters or buffers.
std::map<std::string, MakeModule> torch_modules() {
  namespace nn = torch::nn;
  using Padding = nn::Conv1dOptions;
  return {
      {"AdaptiveLogSoftmaxWithLoss",
       maker<nn::AdaptiveLogSoftmaxWithLoss>(
           nn::AdaptiveLogSoftmaxWithLossOptions(8, 20, {4, 10}).div_value(2.))},
      {"BatchNorm1d", maker<nn::BatchNorm1d>(4)},
      {"BatchNorm2d", maker<nn::BatchNorm2d>(4)},
      {"BatchNorm3d", maker<nn::BatchNorm3d>(4)},
      {"Bilinear", maker<nn::Bilinear>(3, 4, 5)},
      {"Conv1d", maker<nn::Conv1d>(Padding(4, 6, 3))},
      {"Conv2d", maker<nn::Conv2d>(nn::Conv2dOptions(4, 6, 3).groups(2))},
      {"Conv3d", maker<nn::Conv3d>(nn::Conv3dOptions(4, 6, 3).bias(false))},
      {"ConvTranspose1d", maker<nn::ConvTranspose1d>(nn::ConvTranspose1dOptions(4, 6, 3))},
      {"ConvTranspose2d", maker<nn::ConvTranspose2d>(nn::ConvTranspose2dOptions(4, 6, 3))},
      {"ConvTranspose3d", maker<nn::ConvTranspose3d>(nn::ConvTranspose3dOptions(4, 6, 3))},
      {"CrossEntropyLoss",
       [] {
         return nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().weight(torch::ones({3}))).ptr();
       }},
      {"Embedding", maker<nn::Embedding>(nn::EmbeddingOptions(10, 4).padding_idx(3))},
      {"EmbeddingBag", maker<nn::EmbeddingBag>(nn::EmbeddingBagOptions(10, 4))},
      {"GroupNorm", maker<nn::GroupNorm>(nn::GroupNormOptions(2, 4))},
      {"GRU", maker<nn::GRU>(nn::GRUOptions(4, 6).num_layers(2))},
      {"GRUCell", maker<nn::GRUCell>(4, 6)},
      {"InstanceNorm1d", maker<nn::InstanceNorm1d>(
                             nn::InstanceNorm1dOptions(4).affine(true).track_running_stats(true))},
      {"InstanceNorm2d", maker<nn::InstanceNorm2d>(nn::InstanceNorm2dOptions(4).affine(true))},
      {"InstanceNorm3d",
       maker<nn::InstanceNorm3d>(nn::InstanceNorm3dOptions(4).track_running_stats(true))},
      {"LayerNorm", maker<nn::LayerNorm>(nn::LayerNormOptions({4, 6}))},
      {"Linear", maker<nn::Linear>(4, 6)},
      {"LSTM", maker<nn::LSTM>(nn::LSTMOptions(4, 6).bidirectional(true).proj_size(2))},
      {"LSTMCell", maker<nn::LSTMCell>(4, 6)},
      {"MultiheadAttention",
       maker<nn::MultiheadAttention>(
           nn::MultiheadAttentionOptions(8, 2).kdim(6).vdim(4).add_bias_kv(true))},
      {"NLLLoss", [] { return nn::NLLLoss(nn::NLLLossOptions().weight(torch::rand({3}))).ptr(); }},
      {"PReLU", maker<nn::PReLU>(nn::PReLUOptions().num_parameters(4))},
      {"RNN", maker<nn::RNN>(nn::RNNOptions(4, 6).num_layers(2).nonlinearity(torch::kReLU))},
      {"RNNCell", maker<nn::RNNCell>(4, 6)},
      {"Transformer", maker<nn::Transformer>(nn::TransformerOptions(8, 2, 1, 1))},
      {"TransformerEncoder",
       [] {
         return nn::TransformerEncoder(
                    nn::TransformerEncoderOptions(
                        nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2)), 2))
             .ptr();
       }},
      {"TransformerDecoder",
       [] {
         return nn::TransformerDecoder(
                    nn::TransformerDecoderOptions(
                        nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(8, 2)), 2))
             .ptr();
       }},
  };
}

at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

class UnchangedGenerator {
 public:
  ~UnchangedGenerator() {
    EXPECT_TRUE(torch::equal(generator_state(), before_)) << "random numbers were drawn";
  }

 private:
  at::Tensor before_ = generator_state();
};

class TorchModules : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<torch::nn::Module> make() const { return torch_modules().at(GetParam())(); }
};

std::vector<std::string> names_of_torch_modules() {
  std::vector<std::string> names;
  for (const auto& [name, make] : torch_modules()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(, TorchModules, testing::ValuesIn(names_of_torch_modules()),
                         [](const auto& test) { return test.param; });

TEST_P(TorchModules, HaveParametersOfTheSameKindWithoutMemory) {
  const auto real = make();
  std::shared_ptr<torch::nn::Module> empty;
  {
    const UnchangedGenerator generator;
    const auto scope = init_empty_weights();
    empty = make();
  }
  const auto expected = real->named_parameters();
  const auto found = empty->named_parameters();
  ASSERT_EQ(found.keys(), expected.keys());
  for (const auto& item : found) {
    const at::Tensor& same = expected[item.key()];
    EXPECT_TRUE(item.value().is_meta()) << item.key();
    EXPECT_EQ(item.value().sizes(), same.sizes()) << item.key();
    EXPECT_EQ(item.value().strides(), same.strides()) << item.key();
    EXPECT_EQ(item.value().scalar_type(), same.scalar_type()) << item.key();
    EXPECT_EQ(item.value().requires_grad(), same.requires_grad()) << item.key();
    EXPECT_TRUE(item.value().is_leaf()) << item.key();
  }
  ASSERT_EQ(empty->named_buffers().keys(), real->named_buffers().keys());
  if (GetParam() == "NLLLoss") return;  // its buffer is random
  for (const auto& item : empty->named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), real->named_buffers()[item.key()])) << item.key();
  }
}

TEST_P(TorchModules, HaveNoMemoryAtAllIfBuffersAreIncluded) {
  const UnchangedGenerator generator;
  const auto empty = init_empty_weights([&] { return make(); }, {.include_buffers = true});
  for (const auto& item : empty->named_parameters()) EXPECT_TRUE(item.value().is_meta());
  for (const auto& item : empty->named_buffers()) EXPECT_TRUE(item.value().is_meta()) << item.key();
}

TEST_P(TorchModules, MaterializeWithTheValuesOfTheirConstructor) {
  if (GetParam() == "NLLLoss" || GetParam() == "CrossEntropyLoss" || GetParam() == "Transformer") {
    GTEST_SKIP() << "not by reset_torch_module()";
  }
  torch::manual_seed(1);
  const auto real = make();
  const auto empty = init_empty_weights([&] { return make(); }, {.include_buffers = true});
  std::vector<std::string> unknown;
  torch::manual_seed(1);
  materialize(*empty, at::kCPU, {.init = [&](const std::string& name, torch::nn::Module& module) {
    if (!accelerant::reset_torch_module(module)) unknown.push_back(name);
  }});
  EXPECT_EQ(unknown, std::vector<std::string>());
  EXPECT_EQ(empty_tensors(*empty), std::vector<std::string>());
  for (const auto& item : empty->named_parameters()) {
    EXPECT_TRUE(item.value().requires_grad());
    EXPECT_TRUE(item.value().isfinite().all().item<bool>()) << item.key();
  }
  // Modules of modules draw their numbers in another order.
  if (!real->children().empty()) return;
  for (const auto& item : empty->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), real->named_parameters()[item.key()])) << item.key();
  }
  for (const auto& item : empty->named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), real->named_buffers()[item.key()])) << item.key();
  }
}

// Rotary embeddings, a causal mask, frozen and computed parameters, initialisers of all kinds.
struct UserImpl : torch::nn::Module {
  UserImpl() {
    using namespace torch::nn::init;  // NOLINT
    scale = register_parameter("scale", torch::ones({4}));
    zeros = register_parameter("zeros", torch::zeros({4, 4}, torch::kDouble));
    normal = register_parameter("normal", torch::randn({4, 4}) * 0.02);
    early = torch::empty({4, 4});
    normal_(early, 0, 0.1);
    register_parameter("early", early);
    wide = register_parameter("wide", torch::empty({3, 4}));
    xavier_uniform_(wide);
    kaiming_normal_(wide);
    orthogonal_(wide);
    eye_(wide);
    constant_(wide, 1);
    kernel = register_parameter("kernel", torch::empty({4, 4, 3}));
    dirac_(kernel);
    typed = register_parameter("typed", torch::tensor({1.0F, 2.0F}));
    frozen = register_parameter("frozen", torch::ones({4}), /*requires_grad=*/false);
    rates = register_buffer("rates", torch::pow(10000., -torch::arange(0, 8, 2) / 8.));
    mask = register_buffer("mask", torch::ones({5, 5}, torch::kBool).tril());
    counts = register_buffer("counts", torch::tensor({1, 2, 3}));
    head = register_module("head", torch::nn::Linear(4, 6));
    head->weight = wide;  // a member of the caller's, not registered anew
    tail = register_module("tail", head);
  }

  at::Tensor scale, zeros, normal, early, wide, kernel, typed, frozen, rates, mask, counts;
  torch::nn::Linear head = nullptr, tail = nullptr;
};
TORCH_MODULE(User);

TEST(EmptyWeights, OfModulesOfTheUser) {
  const User real;
  const UnchangedGenerator generator;
  User empty = nullptr;
  {
    const auto scope = init_empty_weights();
    empty = User();
    EXPECT_TRUE(torch::full({2}, 3.).sum().item<double>() == 6) << "other tensors are real";
  }
  for (const auto& item : empty->named_parameters()) {
    // A scope does not see what torch::tensor({...}) returns, unless something uses it.
    const bool is_moved = item.key() != "frozen" && item.key() != "typed";
    EXPECT_EQ(item.value().is_meta(), is_moved) << item.key();
    EXPECT_EQ(item.value().sizes(), real->named_parameters()[item.key()].sizes());
    EXPECT_EQ(item.value().dtype(), real->named_parameters()[item.key()].dtype());
  }
  EXPECT_TRUE(torch::equal(empty->frozen, torch::ones({4})));
  for (const auto& item : empty->named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), real->named_buffers()[item.key()])) << item.key();
  }
  EXPECT_TRUE(empty->scale.is_meta()) << "members are the registered tensors";
}

TEST(EmptyWeights, TheFormWithAFunctionKnowsFrozenParameters) {
  const auto empty = init_empty_weights([] { return User(); });
  EXPECT_TRUE(empty->frozen.is_meta());
  EXPECT_TRUE(empty->typed.is_meta());
  EXPECT_FALSE(empty->frozen.requires_grad());
  EXPECT_FALSE(empty->mask.is_meta());
  const auto all = init_empty_weights([] { return User(); }, {.include_buffers = true});
  EXPECT_EQ(empty_tensors(all).size(), all->named_parameters().size() + 3);
}

TEST(EmptyWeights, ConstructorsMayWriteBuffersThemselves) {
  struct TableImpl : torch::nn::Module {
    TableImpl() {
      table = torch::empty({1 << 20});
      auto values = table.accessor<float, 1>();
      for (int i = 0; i < values.size(0); ++i) values[i] = static_cast<float>(i);
      register_buffer("table", table);
    }
    at::Tensor table;
  };
  const auto scope = init_empty_weights();
  EXPECT_TRUE(torch::equal(TableImpl().table, torch::arange(1 << 20, torch::kFloat)));
}

TEST(EmptyWeights, TheFormWithAFunctionTakesModulesHoldersAndPointers) {
  EXPECT_TRUE(init_empty_weights([] { return torch::nn::Linear(2, 2); })->weight.is_meta());
  EXPECT_TRUE(init_empty_weights([] { return torch::nn::LinearImpl(2, 2); }).weight.is_meta());
  EXPECT_TRUE(init_empty_weights([] {
                return std::make_unique<torch::nn::LinearImpl>(2, 2);
              })->weight.is_meta());
  const torch::nn::Linear none = init_empty_weights([] { return torch::nn::Linear(nullptr); });
  EXPECT_TRUE(none.is_empty());
}

TEST(EmptyWeights, LeaveBuffersToTheEnvironment) {
  struct Unset {
    ~Unset() { unsetenv("ACCELERATE_INIT_INCLUDE_BUFFERS"); }
  } const unset;
  const auto mask_is_meta = [] {
    return init_empty_weights([] { return User(); })->mask.is_meta();
  };
  setenv("ACCELERATE_INIT_INCLUDE_BUFFERS", "yes", 1);
  EXPECT_TRUE(mask_is_meta());
  EXPECT_FALSE(
      init_empty_weights([] { return User(); }, {.include_buffers = false})->mask.is_meta());
  setenv("ACCELERATE_INIT_INCLUDE_BUFFERS", "0", 1);
  EXPECT_FALSE(mask_is_meta());
  setenv("ACCELERATE_INIT_INCLUDE_BUFFERS", "maybe", 1);
  EXPECT_TRUE(contains(whole_error_of(mask_is_meta), "maybe"));
}

TEST(EmptyWeights, AreLeftAloneOnceTheScopeHasEnded) {
  { const auto scope = init_empty_weights(); }
  EXPECT_FALSE(torch::nn::Linear(2, 2)->weight.is_meta());
  EXPECT_FALSE(torch::randn({2}).is_meta());
}

TEST(EmptyWeights, ScopesNest) {
  const auto outer = init_empty_weights();
  {
    const auto inner = init_on_device(at::kCPU);
    const torch::nn::Linear real(2, 2);
    EXPECT_FALSE(real->weight.is_meta());
    {
      const auto innermost = init_empty_weights();
      EXPECT_TRUE(torch::nn::Linear(2, 2)->weight.is_meta());
    }
    const torch::nn::Linear again(2, 2);
    EXPECT_FALSE(again->weight.is_meta());
    EXPECT_GT(again->weight.abs().sum().item<float>(), 0);
  }
  EXPECT_TRUE(torch::nn::Linear(2, 2)->weight.is_meta());
}

TEST(EmptyWeights, ScopesEndWithAnException) {
  std::shared_ptr<torch::nn::Module> kept;
  EXPECT_THROW(
      {
        const auto scope = init_empty_weights();
        kept = torch::nn::PReLU().ptr();
        throw std::runtime_error("in a constructor");
      },
      std::runtime_error);
  EXPECT_FALSE(torch::nn::Linear(2, 2)->weight.is_meta());
  EXPECT_THROW(init_empty_weights([]() -> torch::nn::Linear { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_FALSE(torch::nn::Linear(2, 2)->weight.is_meta());
}

TEST(EmptyWeights, ScopesBelongToTheirThread) {
  const auto scope = init_empty_weights();
  bool is_meta = true;
  std::thread([&] { is_meta = torch::nn::Linear(2, 2)->weight.is_meta(); }).join();
  EXPECT_FALSE(is_meta);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        if (i % 2 == 0) {
          wrong += !init_empty_weights([] { return torch::nn::Linear(2, 2); })->weight.is_meta();
        } else {
          wrong += torch::nn::Linear(2, 2)->weight.is_meta();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(EmptyWeights, ModelsFromBeforeAreNotTouched) {
  torch::nn::Linear before(3, 3);
  const at::Tensor values = before->weight.detach().clone();
  {
    const auto scope = init_empty_weights();
    const at::Tensor loss = before->forward(torch::ones({2, 3})).sum();
    loss.backward();  // in a thread of autograd on a GPU
    torch::nn::Sequential shared(before, torch::nn::Linear(3, 3));
    EXPECT_FALSE(before->weight.is_meta());
    torch::NoGradGuard no_grad;
    before->bias.uniform_();
  }
  EXPECT_TRUE(torch::equal(before->weight, values));
  EXPECT_TRUE(before->weight.grad().defined());
  EXPECT_FALSE(before->bias.is_meta());
}

TEST(EmptyWeights, ViewsOfOneTensorStayTied) {
  struct FlatImpl : torch::nn::Module {
    FlatImpl() {
      const at::Tensor flat = torch::zeros({6});
      a = register_parameter("a", flat.narrow(0, 0, 4));
      b = register_parameter("b", flat.narrow(0, 2, 4));
    }
    at::Tensor a, b;
  };
  FlatImpl module = init_empty_weights([] { return FlatImpl(); });
  ASSERT_TRUE(module.a.is_meta());
  EXPECT_TRUE(module.a.storage().is_alias_of(module.b.storage()));
  materialize(module, at::kCPU);
  torch::NoGradGuard no_grad;
  module.a.fill_(1);
  module.b.fill_(2);
  EXPECT_TRUE(torch::equal(module.a, torch::tensor({1.F, 1.F, 2.F, 2.F})));
}

TEST(EmptyWeights, AModelOf70BillionParametersIsBuiltInNoTime) {
  const auto resident_bytes = [] {
    long pages = 0;
    long resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    return resident * 4096;
  };
  init_empty_weights([] { return torch::nn::Linear(1, 1); });  // registers the fallback
  const long before = resident_bytes();
  const auto start = std::chrono::steady_clock::now();
  const UnchangedGenerator generator;
  const auto net = init_empty_weights([] {
    constexpr int64_t kWidth = 8192;
    torch::nn::Sequential layers;
    layers->push_back(torch::nn::Embedding(128256, kWidth));
    for (int i = 0; i < 80; ++i) {
      layers->push_back(torch::nn::Linear(kWidth, kWidth + 2048));
      layers->push_back(torch::nn::Linear(kWidth, kWidth));
      layers->push_back(torch::nn::Linear(kWidth, 28672));
      layers->push_back(torch::nn::Linear(kWidth, 28672));
      layers->push_back(torch::nn::Linear(28672, kWidth));
      layers->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    }
    layers->push_back(torch::nn::Linear(kWidth, 128256));
    return layers;
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  int64_t count = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    ASSERT_TRUE(parameter.is_meta());
    count += parameter.numel();
  }
  EXPECT_GT(count, 70'000'000'000);
  EXPECT_LT(resident_bytes() - before, 100'000'000);
  RecordProperty("milliseconds", static_cast<int>(seconds.count() * 1000));
  std::printf("%.1f B parameters: %.3f s, %.1f MB\n", static_cast<double>(count) / 1e9,
              seconds.count(), static_cast<double>(resident_bytes() - before) / 1e6);
}

TEST(EmptyWeights, ATensorMayBeLargerThanTheMachine) {
  const auto net =
      init_empty_weights([] { return torch::nn::Linear(int64_t{1} << 22, int64_t{1} << 20); });
  EXPECT_TRUE(net->weight.is_meta());
  EXPECT_EQ(net->weight.numel(), int64_t{1} << 42);
}

class InitOnDevice : public OnDevice {};
ON_EVERY_DEVICE(InitOnDevice);

TEST_P(InitOnDevice, ParametersAreThereAndInitialised) {
  const auto scope = init_on_device(device());
  torch::nn::Linear net(64, 64);
  const User user;
  EXPECT_EQ(net->weight.device(), device());
  EXPECT_GT(net->weight.abs().sum().item<float>(), 0);
  EXPECT_LE(net->weight.abs().max().item<float>(), 0.125F);
  EXPECT_EQ(user->mask.device(), at::kCPU);
  EXPECT_EQ(user->wide.device(), device());
  EXPECT_TRUE(torch::equal(user->scale.cpu(), torch::ones({4}))) << "values move along";
}

TEST_P(InitOnDevice, BuffersAreThereIfIncluded) {
  const auto net =
      init_on_device(device(), [] { return torch::nn::BatchNorm1d(4); }, {.include_buffers = true});
  for (const auto& item : net->named_buffers()) EXPECT_EQ(item.value().device(), device());
  EXPECT_TRUE(torch::equal(net->running_var.cpu(), torch::ones({4})));
}

TEST_P(InitOnDevice, EqualsMovingTheModuleForValuesThatAreNotRandom) {
  auto net = init_on_device(device(),
                            [] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})); });
  const at::Tensor x = torch::randn({3, 4}, options());
  net->forward(x).sum().backward();
  EXPECT_EQ(net->weight.grad().device(), device());
  EXPECT_TRUE(torch::equal(net->bias.grad().cpu(), torch::full({4}, 3.F)));
}

class Materialize : public OnDevice {};
ON_EVERY_DEVICE(Materialize);

TEST_P(Materialize, GivesMemoryToEmptyTensorsOnly) {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() : real(2, 2) {
      register_module("real", real);
      register_module("empty", empty = init_empty_weights([] { return torch::nn::Linear(2, 3); }));
      register_module("again", empty);
    }
    torch::nn::Linear real, empty = nullptr;
  };
  TwoImpl net;
  const at::Tensor before = net.real->weight.clone();
  torch::optim::SGD sgd(net.empty->parameters(), 0.5);
  EXPECT_EQ(empty_tensors(net),
            (std::vector<std::string>{"empty.weight", "empty.bias", "again.weight", "again.bias"}));
  std::vector<std::string> visited;
  const auto names =
      materialize(net, device(), {.init = [&](const std::string& name, auto& module) {
                    visited.push_back(name);
                    accelerant::reset_torch_module(module);
                  }});
  EXPECT_EQ(names.size(), 4U);
  EXPECT_EQ(visited, std::vector<std::string>{"empty"});
  EXPECT_TRUE(torch::equal(net.real->weight, before));
  EXPECT_EQ(net.empty->weight.device(), device());
  const at::Tensor weight = net.empty->weight.detach().clone();
  net.empty->forward(torch::ones({1, 2}, options())).sum().backward();
  sgd.step();
  EXPECT_TRUE(torch::equal(net.empty->weight, weight - 0.5)) << "the optimizer has the tensors";
  EXPECT_TRUE(materialize(net, device()).empty());
}

// Two names of one weight, of which a file holds one.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    table = register_parameter("table", torch::randn({4, 3}));
    head = register_parameter("head", table);
    scale = register_parameter("scale", torch::ones({3}));
  }
  at::Tensor table, head, scale;
};
TORCH_MODULE(Tied);

TEST_P(Materialize, IsFollowedByLoading) {
  const TempFolder folder;
  const Tied saved;
  accelerant::save_model(saved, folder.path());
  const Tied empty = init_empty_weights([] { return Tied(); });
  materialize(empty, device());
  accelerant::load_checkpoint_in_model(empty, folder.path());
  EXPECT_TRUE(torch::equal(empty->head.cpu(), saved->head));
  EXPECT_TRUE(empty->table.is_same(empty->head));

  const Tied placed = init_empty_weights([] { return Tied(); });
  accelerant::load_checkpoint_in_model(placed, folder.path(), {.device_map = {{"", device()}}});
  EXPECT_TRUE(torch::equal(placed->head.cpu(), saved->head));
  EXPECT_TRUE(placed->table.requires_grad() && placed->table.is_leaf());
  EXPECT_EQ(placed->scale.device(), device());
}

TEST(MaterializeErrors, LoadingNeedsMemory) {
  const TempFolder folder;
  accelerant::save_model(Tied(), folder.path());
  const Tied empty = init_empty_weights([] { return Tied(); });
  EXPECT_TRUE(
      contains(whole_error_of([&] { accelerant::load_checkpoint_in_model(empty, folder.path()); }),
               "materialize"));
  EXPECT_TRUE(empty->table.is_meta());
}

TEST(MaterializeErrors, NoMemoryOnMeta) {
  const auto net = init_empty_weights([] { return torch::nn::Linear(2, 2); });
  EXPECT_TRUE(contains(whole_error_of([&] { materialize(net, at::kMeta); }), "meta"));
}

TEST(MaterializeErrors, WithoutEnoughMemoryNothingChanges) {
  // Together more than addresses reach: some systems promise any memory.
  static constexpr int64_t kWide = int64_t{1} << 22;
  torch::nn::Sequential net = init_empty_weights([] {
    return torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::Linear(kWide, kWide),
                                 torch::nn::Linear(kWide, kWide));
  });
  EXPECT_ANY_THROW(materialize(net, at::kCPU));
  EXPECT_EQ(empty_tensors(net).size(), 6U);
}

TEST(MaterializeErrors, GradientsWithoutValuesAreDropped) {
  auto net = init_empty_weights([] { return torch::nn::Linear(2, 2); });
  net->forward(torch::ones({1, 2}, at::kMeta)).sum().backward();
  ASSERT_TRUE(net->weight.grad().is_meta());
  materialize(net, at::kCPU);
  EXPECT_FALSE(net->weight.grad().defined());
}

TEST(MaterializeErrors, GradientAccumulatorsFollow) {
  auto net = init_empty_weights([] { return torch::nn::Linear(2, 2); });
  const at::Tensor out = net->forward(torch::ones({1, 2}, at::kMeta));  // makes an accumulator
  materialize(net, at::kCPU,
              {.init = [](const auto&, auto& module) { accelerant::reset_torch_module(module); }});
  net->forward(torch::ones({1, 2})).sum().backward();
  EXPECT_TRUE(net->weight.grad().device().is_cpu());
}

class AlignModule : public OnDevice {};
ON_EVERY_DEVICE(AlignModule);

TEST_P(AlignModule, MovesThereAndBackWithItsValues) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
  auto* const linear = net->ptr(0)->as<torch::nn::LinearImpl>();
  linear->weight.mutable_grad() = torch::ones({2, 2});
  const at::Tensor before = linear->weight.detach().clone();
  {
    const auto aligned = align_module_device(*linear, device());
    EXPECT_EQ(linear->weight.device(), device());
    EXPECT_EQ(linear->weight.grad().device(), device());
    torch::NoGradGuard no_grad;
    linear->weight.add_(1);
  }
  EXPECT_TRUE(torch::equal(linear->weight, before + 1));
  EXPECT_TRUE(linear->weight.is_leaf() && linear->weight.requires_grad());
  {
    const auto own = align_module_device(net, device());
    EXPECT_TRUE(linear->weight.device().is_cpu()) << "children stay";
  }
  {
    const auto all = align_module_device(net, device(), {.recurse = true, .include_buffers = true});
    EXPECT_EQ(linear->weight.device(), device());
    EXPECT_EQ(net->named_buffers()["1.running_mean"].device(), device());
  }
  for (const auto& item : net->named_buffers()) EXPECT_TRUE(item.value().device().is_cpu());
  const auto nothing = align_module_device(*linear);
  EXPECT_TRUE(linear->weight.device().is_cpu());
}

TEST_P(AlignModule, HoldsWhatIsOffloaded) {
  torch::nn::Linear net(512, 512);
  const at::Tensor before = net->weight.detach().clone();
  accelerant::cpu_offload(*net, {.execution_device = device()});
  {
    const auto aligned = align_module_device(net, device());
    EXPECT_NE(net->weight.data_ptr(), nullptr) << "code may read addresses";
    const torch::NoGradGuard no_grad;
    net->weight.add_(1);
  }
  if (on_cuda()) {
    EXPECT_THROW(align_module_device(net, at::kCPU), accelerant::Error);
  }
  accelerant::undo_offload(*net);
  EXPECT_TRUE(torch::equal(net->weight.cpu(), before + 1));
}

TEST_P(AlignModule, ReadingLeavesWeightsOnTheDisk) {
  const TempFolder folder;
  torch::nn::Linear net(512, 512);
  const at::Tensor values = net->weight.detach().clone();
  accelerant::disk_offload(net, folder.path(), {.execution_device = device(), .budget = 0});
  const auto model = accelerant::paging::OffloadedModel::of(*net).at(0);
  // On the CPU weights are used where they are.
  const auto place = [&]() -> const void* { return on_cuda() ? nullptr : net->weight.data_ptr(); };
  const void* const in_the_file = place();
  {
    const auto read = align_module_device(net, std::nullopt, {.writes = false});
    EXPECT_NE(net->weight.data_ptr(), nullptr);
  }
  EXPECT_EQ(place(), in_the_file);
  EXPECT_EQ(model->pager().statistics().write_backs, 0U);
  { const auto written = align_module_device(net); }
  if (on_cuda()) {
    EXPECT_EQ(model->pager().statistics().write_backs, 1U);
  } else {
    EXPECT_NE(place(), in_the_file);
  }
  EXPECT_TRUE(torch::equal(net->weight.cpu(), values));
}

TEST(AlignModuleErrors, MetaHasNoValues) {
  torch::nn::Linear real(2, 2);
  const auto empty = init_empty_weights([] { return torch::nn::Linear(2, 2); });
  EXPECT_TRUE(
      contains(whole_error_of([&] { const auto scope = align_module_device(empty, at::kCPU); }),
               "materialize"));
  EXPECT_TRUE(contains(
      whole_error_of([&] { const auto scope = align_module_device(real, at::kMeta); }), "weight"));
  EXPECT_FALSE(real->weight.is_meta());
}

}  // namespace
