// Problems between processes raise an Error, in time and on every rank concerned.
#include <dist/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "dist/parallel_net.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace {

using namespace parallel_net;  // NOLINT: the subject of this file

at::Tensor forward_of(DataParallel& parallel, Net& net, int64_t step) {
  return call_of(parallel)(true,
                           [&] { return Tensors{net.out(net.hidden(batch_of(step, rank())))}; })[0];
}

RANK_TEST(DataParallelErrors, DifferentModels, 3) {
  const auto world = join_world();
  const auto error_with = [&](const std::set<std::string>& parts_of_2,
                              const DataParallelOptions& options_of_2,
                              const std::function<void(Net&)>& change_2 = {}) {
    auto net = std::make_shared<Net>(rank() == 2 ? parts_of_2 : std::set<std::string>{"in", "out"});
    if (rank() == 2 && change_2) change_2(*net);
    return whole_error_of(
        [&] { parallel_of(world, net, rank() == 2 ? options_of_2 : DataParallelOptions{}); });
  };
  const auto expect = [&](const std::string& error, const std::string& part) {
    EXPECT_TRUE(contains(error, "different models"));
    EXPECT_TRUE(contains(error, part));
  };
  expect(error_with({"in", "out", "inner"}, {}), "rank 2 has inner.weight Float [8, 8]");
  expect(error_with({"in"}, {}), "rank 2 lacks out.bias");
  expect(error_with({"in", "out"}, {.static_graph = true}), "rank 2 has static_graph true");
  expect(error_with({"in", "out"}, {}, [](Net& net) { net.to(at::kDouble); }),
         "rank 2 has in.bias Double [8]");
  expect(error_with({"in", "out"}, {}, [](Net& net) { net.in->bias.requires_grad_(false); }),
         "rank 2 has in.bias Float [8], frozen");
  expect(error_with({"in", "out"}, {},
                    [](Net& net) {
                      for (auto& p : net.parameters()) p.requires_grad_(false);
                    }),
         "rank 2 has a problem (no parameter");
  // Training works afterwards.
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net);
  forward_of(*parallel, *net, 0).mean().backward();
  step_and_clear(*net);
  expect_same_on_all_ranks(*world, net->parameters());
}

RANK_TEST(DataParallelErrors, ModelsThatCannotBeTrained, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  EXPECT_TRUE(contains(whole_error_of([&] { parallel_of(world, net, {.bucket_cap_mb = 0}); }),
                       "bucket_cap_mb is 0"));
  for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
  EXPECT_TRUE(contains(whole_error_of([&] { parallel_of(world, net); }),
                       "no parameter requires gradients"));
}

RANK_TEST(DataParallelErrors, UnusedParameters, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out", "other_out"});
  auto parallel = parallel_of(world, net);
  forward_of(*parallel, *net, 0).mean().backward();
  const auto message = whole_error_of([&] { parallel->require_reduced(); });
  EXPECT_TRUE(contains(message, "no gradients for other_out.weight, other_out.bias"));
  EXPECT_TRUE(contains(message, "find_unused_parameters"));
  // If nobody calls require_reduced(), the next forward reports it.
  EXPECT_TRUE(contains(whole_error_of([&] { forward_of(*parallel, *net, 1); }),
                       "no gradients for other_out.weight"));
}

RANK_TEST(DataParallelErrors, FrozenAndUnfrozenParameters, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  net->in->weight.requires_grad_(false);
  auto parallel = parallel_of(world, net);
  net->in->weight.requires_grad_(true);
  EXPECT_TRUE(
      contains(error_of([&] { forward_of(*parallel, *net, 0); }), "in.weight requires gradients"));
  net->in->weight.requires_grad_(false);
  net->out->bias.requires_grad_(false);
  forward_of(*parallel, *net, 0).mean().backward();
  EXPECT_TRUE(contains(whole_error_of([&] { parallel->require_reduced(); }),
                       "no gradients for out.bias (frozen"));
}

RANK_TEST(DataParallelErrors, AStaticGraphThatChanges, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out", "other_out"});
  auto parallel = parallel_of(world, net, {.static_graph = true});
  const auto train = [&](int64_t step) {
    call_of (*parallel)(true,
                        [&] {
                          const auto hidden = net->hidden(batch_of(step, rank()));
                          return Tensors{step < 2 ? net->out(hidden) : net->other_out(hidden)};
                        })[0]
        .mean()
        .backward();
  };
  train(0);
  train(1);
  const auto error = whole_error_of([&] {
    try {
      train(2);
    } catch (...) {
      accelerant::dist::rethrow_backward_error({parallel.get()}, std::current_exception());
    }
    parallel->require_reduced();
  });
  EXPECT_TRUE(contains(error, "static_graph promises"));
}

RANK_TEST(DataParallelErrors, SynchronisingAfterwardsWithUnused, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net, {.find_unused_parameters = true});
  EXPECT_TRUE(contains(whole_error_of([&] { parallel->synchronise_next_backward(); }),
                       "find_unused_parameters"));
}

// Also covers the order in which users may destroy the objects.
RANK_TEST(DataParallelErrors, AWorldThatHasEnded, 2) {
  auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net);
  const auto output = forward_of(*parallel, *net, 0);
  output.mean().backward();
  const auto later = forward_of(*parallel, *net, 0);
  expect_same_on_all_ranks(*world, net->parameters());
  world->close();
  EXPECT_TRUE(
      contains(error_of([&] { forward_of(*parallel, *net, 1); }), "without process groups"));
  world.reset();
  parallel.reset();
  later.mean().backward();  // nothing reduces it any more
}

RANK_TEST(DataParallelErrors, AProcessThatDies, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net);
  const auto loss = forward_of(*parallel, *net, 0).mean();
  if (rank() == 1) {
    std::fflush(nullptr);
    std::_Exit(0);
  }
  const auto error = whole_error_of([&] {
    try {
      loss.backward();
    } catch (...) {
      accelerant::dist::rethrow_backward_error({parallel.get()}, std::current_exception());
    }
  });
  EXPECT_TRUE(contains(error, "lost its connection to another process"));
}

RANK_TEST(DataParallelErrors, ErrorsOfTheModelAreNotOurs, 2) {
  const auto world = join_world();
  auto net = std::make_shared<Net>(std::set<std::string>{"in", "out"});
  auto parallel = parallel_of(world, net);
  try {
    accelerant::dist::rethrow_backward_error({parallel.get()},
                                             std::make_exception_ptr(std::runtime_error("mine")));
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "mine");
  }
}

}  // namespace
