// Compares SyncBatchNorm on several ranks with torch's BatchNorm on the concatenated batch.
#include <accelerant/dist/local_sgd.h>
#include <accelerant/dist/sync_batch_norm.h>
#include <accelerant/dist/world.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "support/expect_error.h"
#include "support/parameter_hash.h"
#include "support/ranks.h"
#include "support/world.h"

namespace {

using accelerant::dist::average_parameters;
using accelerant::dist::connect_sync_batch_norms;
using accelerant::dist::convert_sync_batchnorm;
using accelerant::dist::Environment;
using accelerant::dist::SyncBatchNorm;
using accelerant::dist::World;
using torch::nn::BatchNormOptions;

struct Case {
  std::vector<int64_t> rows;   // of each rank
  std::vector<int64_t> shape;  // without the rows
  at::ScalarType type = torch::kDouble;
  double tolerance = 1e-11;
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
  bool channels_last = false;
};

// torch has a module for each number of dimensions; all compute the same, so this uses one of them.
at::Tensor plain_forward(torch::nn::BatchNorm1d& plain, const at::Tensor& input) {
  return plain->forward(input.reshape({input.size(0), input.size(1), -1})).view(input.sizes());
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                  const char* what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(
      torch::allclose(got.to(torch::kDouble), expected.to(torch::kDouble), tolerance, tolerance))
      << what << ": " << (got - expected).abs().max();
}

void compare_with_one_process(const std::shared_ptr<World>& world, const Case& c) {
  torch::manual_seed(11);
  const auto device = world->device();
  const int64_t channels = c.shape.front();
  const auto options = BatchNormOptions(channels)
                           .momentum(c.momentum)
                           .affine(c.affine)
                           .track_running_stats(c.track_running_stats);
  const bool is_16_bit = c.type == torch::kHalf || c.type == torch::kBFloat16;
  const auto exact = c.type == torch::kDouble ? torch::kDouble : torch::kFloat;
  torch::nn::BatchNorm1d plain(options);
  SyncBatchNorm synced(options, world);
  plain->to(exact);
  synced->to(exact);
  plain->to(device);
  synced->to(device);
  if (c.affine) {
    const torch::NoGradGuard no_grad;
    plain->weight.uniform_(0.5, 2);
    plain->bias.normal_();
    synced->weight.copy_(plain->weight);
    synced->bias.copy_(plain->bias);
  }
  int64_t total = 0;
  int64_t first = 0;
  for (size_t rank = 0; rank < c.rows.size(); ++rank) {
    if (static_cast<int64_t>(rank) < world->rank()) first += c.rows[rank];
    total += c.rows[rank];
  }
  const int64_t own_rows = c.rows[static_cast<size_t>(world->rank())];
  std::vector<int64_t> shape = {total};
  shape.insert(shape.end(), c.shape.begin(), c.shape.end());

  for (int step = 0; step < 3; ++step) {
    auto whole = (torch::randn(shape, exact) * 2 + 5).to(device, c.type);
    const auto factors = torch::randn(shape, exact).to(device);
    auto own = whole.narrow(0, first, own_rows).clone();
    if (c.channels_last) own = own.contiguous(at::MemoryFormat::ChannelsLast);
    own.requires_grad_(true);
    whole = whole.to(exact).requires_grad_(true);

    const auto expected = plain_forward(plain, whole);
    const auto output = synced->forward(own);
    EXPECT_EQ(output.scalar_type(), c.type);
    expect_close(output, expected.narrow(0, first, own_rows), c.tolerance, "output");

    plain->zero_grad();
    synced->zero_grad();
    (expected * factors).sum().backward();
    (output * factors.narrow(0, first, own_rows)).sum().backward();
    EXPECT_EQ(own.grad().scalar_type(), c.type);
    expect_close(own.grad(), whole.grad().narrow(0, first, own_rows), c.tolerance,
                 "input gradient");
    for (const auto& parameter : synced->named_parameters()) {
      const auto sum = parameter.value().grad().clone();
      average_parameters(*world, {sum});
      expect_close(sum * world->size(), plain->named_parameters()[parameter.key()].grad(),
                   is_16_bit ? 0.05 : c.tolerance * 10, parameter.key().c_str());
    }
    for (const auto& buffer : synced->named_buffers()) {
      // float32, whatever the type of the input
      expect_close(buffer.value(), plain->named_buffers()[buffer.key()],
                   is_16_bit ? 1e-5 : c.tolerance, buffer.key().c_str());
    }
  }
  plain->eval();
  synced->eval();
  if (c.track_running_stats && own_rows > 0) {
    const auto input = torch::randn(shape, exact).to(device, c.type);
    expect_close(synced->forward(input), plain_forward(plain, input.to(exact)), c.tolerance,
                 "eval");
  }
  auto state = synced->parameters();
  for (const auto& buffer : synced->buffers()) state.push_back(buffer);
  expect_same_on_all_ranks(*world, state);
}

void compare_all_cases(const std::shared_ptr<World>& world) {
  const std::vector<Case> cases = {
      {.rows = {4, 4, 4}, .shape = {5}},
      {.rows = {4, 1, 7}, .shape = {3, 4}},
      {.rows = {2, 5, 1}, .shape = {3, 4, 2}},
      {.rows = {2, 3, 1}, .shape = {2, 2, 3, 2}},
      {.rows = {3, 0, 2}, .shape = {4}},
      {.rows = {0, 0, 3}, .shape = {4, 3, 3}},
      {.rows = {1, 1, 1}, .shape = {6}},
      {.rows = {3, 2, 4}, .shape = {4}, .momentum = std::nullopt},
      {.rows = {3, 2, 0}, .shape = {4, 2}, .affine = false},
      {.rows = {3, 2, 4}, .shape = {4, 2}, .track_running_stats = false},
      {.rows = {3, 2, 4}, .shape = {4, 3, 3}, .channels_last = true},
      {.rows = {3, 2, 4}, .shape = {4, 3}, .type = torch::kFloat, .tolerance = 1e-5},
      {.rows = {3, 2, 4}, .shape = {4, 3}, .type = torch::kBFloat16, .tolerance = 0.05},
      {.rows = {3, 0, 4},
       .shape = {4, 3},
       .type = torch::kHalf,
       .tolerance = 0.01,
       .affine = false},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    compare_with_one_process(world, cases[i]);
  }
}

RANK_TEST(SyncBatchNorm, EqualsOneProcessOnTheWholeBatch, 3) { compare_all_cases(join_world()); }

RANK_TEST(SyncBatchNorm, EqualsOneProcessOnTheWholeBatchOnAGpu, 3) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  compare_all_cases(World::join(Environment::detect(), {.backend = accelerant::dist::Backend::gloo},
                                torch::Device(torch::kCUDA, 0)));
}

RANK_TEST(SyncBatchNorm, ErrorsOfTraining, 2) {
  auto world = join_world();
  SyncBatchNorm norm(BatchNormOptions(2), world);
  const auto one_row = torch::randn({world->rank() == 0 ? 1 : 0, 2});
  EXPECT_TRUE(contains(error_of([&] { norm->forward(one_row); }), "Too few values"));

  const auto input = torch::randn({3, 2}).requires_grad_(true);
  const auto output = norm->forward(input);
  EXPECT_TRUE(contains(error_of([&] {
                         torch::autograd::grad({output.sum()}, {input}, {}, std::nullopt,
                                               /*create_graph=*/true);
                       }),
                       "second derivative"));
  expect_same_on_all_ranks(*world, norm->parameters());
  world.reset();
  EXPECT_TRUE(contains(error_of([&] { output.sum().backward(); }), "a World that has ended"));
  EXPECT_TRUE(contains(error_of([&] { norm->forward(input); }), "a World that has ended"));
  norm->eval();
  norm->forward(input);
  norm->train();
  norm->set_world(nullptr);
  norm->forward(input);
}

TEST(SyncBatchNorm, InOneProcessItIsBatchNorm) {
  torch::manual_seed(2);
  for (const std::optional<double> momentum :
       {std::optional<double>(0.1), std::optional<double>()}) {
    const auto options = BatchNormOptions(3).momentum(momentum);
    torch::nn::BatchNorm2d plain(options);
    SyncBatchNorm synced(options, World::join(Environment{}));
    const auto alone = World::join(Environment{});
    synced->set_world(alone);
    EXPECT_EQ(plain->named_parameters().keys(), synced->named_parameters().keys());
    EXPECT_EQ(plain->named_buffers().keys(), synced->named_buffers().keys());
    for (int step = 0; step < 3; ++step) {
      const auto input = torch::randn({4, 3, 2, 2});
      EXPECT_TRUE(torch::equal(plain->forward(input), synced->forward(input)));
    }
    for (const auto& buffer : plain->named_buffers()) {
      EXPECT_TRUE(torch::equal(buffer.value(), synced->named_buffers()[buffer.key()]));
    }
  }
  SyncBatchNorm norm(3);
  EXPECT_TRUE(contains(error_of([&] { norm->forward(torch::randn({3})); }), "wrong shape"));
  EXPECT_TRUE(contains(error_of([&] { norm->forward(torch::randn({3, 4})); }), "wrong shape"));
  EXPECT_TRUE(contains(error_of([&] { norm->forward(torch::randn({1, 3})); }), "Too few values"));
}

TEST(SyncBatchNorm, ClonesPrintsAndResets) {
  SyncBatchNorm norm(BatchNormOptions(2).momentum(std::nullopt));
  norm->forward(torch::randn({4, 2}));
  const auto copy = std::dynamic_pointer_cast<accelerant::dist::SyncBatchNormImpl>(norm->clone());
  EXPECT_TRUE(torch::equal(copy->running_mean, norm->running_mean));
  EXPECT_FALSE(copy->running_mean.is_same(norm->running_mean));
  copy->reset_parameters();
  EXPECT_TRUE(torch::equal(copy->running_mean, torch::zeros({2})));
  std::ostringstream text;
  text << norm;
  EXPECT_TRUE(contains(text.str(), "SyncBatchNorm(2, eps=1e-05, momentum=None"));
}

// A Sequential inside another one needs a forward() that is not a template.
struct BlockImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& input) { return SequentialImpl::forward(input); }
};
TORCH_MODULE(Block);

struct TypedMemberImpl : torch::nn::Module {
  TypedMemberImpl() { register_module("body", body); }
  at::Tensor forward(const at::Tensor& input) { return body->forward(norm->forward(input)); }
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(3))};
  torch::nn::Sequential body{torch::nn::BatchNorm2d(3)};
};
TORCH_MODULE(TypedMember);

TEST(ConvertSyncBatchNorm, ReplacesWhatContainersHold) {
  torch::manual_seed(4);
  torch::nn::BatchNorm2d shared(4);
  shared->weight.set_requires_grad(false);
  torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), shared, torch::nn::ReLU(),
                            Block(torch::nn::BatchNorm2d(4), shared));
  const auto input = torch::randn({4, 3, 6, 6});
  net->forward(input);
  net->eval();
  const auto before = net->forward(input);
  const auto parameters = net->parameters();
  const auto state = net->named_buffers();

  EXPECT_EQ(convert_sync_batchnorm(*net, nullptr), 2);
  EXPECT_TRUE(torch::equal(net->forward(input), before));
  const auto after = net->parameters();
  ASSERT_EQ(after.size(), parameters.size());
  for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(after[i].is_same(parameters[i]));
  EXPECT_FALSE(shared->weight.requires_grad());
  for (const auto& buffer : net->named_buffers())
    EXPECT_TRUE(buffer.value().is_same(state[buffer.key()]));
  EXPECT_TRUE(net[1]->as<SyncBatchNorm>() != nullptr);
  EXPECT_EQ(net[1].get(), net[3]->as<Block>()->ptr(1).get());
  EXPECT_FALSE(net[1]->is_training());
  EXPECT_EQ(convert_sync_batchnorm(*net, nullptr), 0);
  EXPECT_EQ(connect_sync_batch_norms(*net, nullptr), 3);

  torch::nn::ModuleList list(torch::nn::BatchNorm1d(2), torch::nn::BatchNorm3d(2));
  EXPECT_EQ(convert_sync_batchnorm(*list, nullptr), 2);
  EXPECT_TRUE(list[0]->as<SyncBatchNorm>() != nullptr);
  torch::nn::ModuleDict dict;
  dict->update({{"norm", torch::nn::BatchNorm1d(2).ptr()}});
  EXPECT_EQ(convert_sync_batchnorm(*dict, nullptr), 1);
  EXPECT_TRUE(dict["norm"]->as<SyncBatchNorm>() != nullptr);
}

TEST(ConvertSyncBatchNorm, NamesWhatItCannotReachAndChangesNothing) {
  torch::nn::Sequential net(TypedMember(), torch::nn::BatchNorm1d(2));
  const std::string error = error_of([&] { convert_sync_batchnorm(*net, nullptr); });
  EXPECT_TRUE(contains(error, "got 0.norm;")) << error;
  EXPECT_TRUE(net[1]->as<torch::nn::BatchNorm1d>() != nullptr);
  torch::nn::BatchNorm1d alone(2);
  EXPECT_TRUE(
      contains(error_of([&] { convert_sync_batchnorm(*alone, nullptr); }), "the module itself"));
}

}  // namespace
