// Behaviours that re-implementations of Accelerate tend to get wrong, as far as they concern one
// process. The numbers are those of the list this library was designed against; gaps are rows about
// several processes or about checkpoints.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/fused_adam.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

// Runs loops over loaders of the given lengths and records at which batches gradients synchronise.
std::string sync_pattern(Accelerator& accelerator, const std::vector<int64_t>& lengths) {
  Scale net;
  const auto model = accelerator.prepare(net);
  std::string pattern;
  for (const int64_t length : lengths) {
    const auto loader = accelerator.prepare(counting_loader(length));
    for ([[maybe_unused]] auto&& batch : loader) {
      const auto window = accelerator.accumulate(model);
      pattern += accelerator.sync_gradients() ? 'S' : '.';
    }
    pattern += ' ';
  }
  return pattern;
}

TEST(Traps, Trap01SyncsAtEveryKthCallAndAtTheLastBatchWhichStartsAFreshWindow) {
  Accelerator accelerator(on_cpu(Precision::no, 3));
  EXPECT_EQ(sync_pattern(accelerator, {7, 5, 3, 1}), "..S..SS ..S.S ..S S ");
}

TEST(Traps, Trap02TheLastBatchIsKnownWhileItIsProcessed) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(5, {.batch_size = 2}));
  std::vector<bool> last;
  for ([[maybe_unused]] auto&& batch : loader) last.push_back(loader.is_last_batch());
  EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
}

TEST(Traps, Trap03TheLookAheadIsNotPartOfThePosition) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(7, {.batch_size = 2}));
  std::vector<int64_t> positions;
  for ([[maybe_unused]] auto&& batch : loader) positions.push_back(loader.position());
  EXPECT_EQ(positions, (std::vector<int64_t>{2, 4, 6, 7}));
}

TEST(Traps, Trap04AShortWindowIsNotUnderweighted) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 4));
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, counting_loader(6));
  float gradient = 0;
  for (auto&& [x] : loader) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    optimizer.step();
    gradient = net->w.grad().item<float>();
    optimizer.zero_grad();
  }
  EXPECT_EQ(gradient, 4.5F);  // the mean of rows 4 and 5; Accelerate gives 9 / 4
}

TEST(Traps, Trap05TwoBlocksForOneBatchHaveWindowsOfTheirOwn) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 0.0);
  torch::optim::SGD sgd_b(b->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [ma, mb, oa, ob, loader] = accelerator.prepare(a, b, sgd_a, sgd_b, counting_loader(4));
  std::string pattern;
  const auto train = [&](const auto& model, const auto& optimizer, const torch::Tensor& x) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    pattern += optimizer.step().kind() == StepResult::Kind::submitted ? 'S' : '.';
    optimizer.zero_grad();
  };
  for (auto&& [x] : loader) {
    train(ma, oa, x);
    train(mb, ob, x);
  }
  EXPECT_EQ(pattern, "..SS..SS");
}

TEST(Traps, Trap06StepZeroGradAndScheduleDoNothingInTheMiddleOfAWindow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto decay = accelerant::optim::step_decay(sgd, {.step_size = 1, .gamma = 0.5});
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, decay);
  {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(2)).mean());
    EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::accumulating);
    scheduler.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F);
  EXPECT_EQ(net->w.grad().item<float>(), 1.0F);
  EXPECT_EQ(decay.last_step(), 0);
  {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(4)).mean());
    EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::submitted);
    scheduler.step();
    optimizer.zero_grad();
  }
  EXPECT_EQ(net->w.item<float>(), 1.0F - 3.0F);
  EXPECT_FALSE(net->w.grad().defined());
  EXPECT_EQ(decay.last_step(), 1);
}

TEST(Traps, Trap09SyncEachBatchDoesNotChangeTheCadence) {
  auto options = on_cpu(Precision::no, 3);
  options.gradient_accumulation.sync_each_batch = true;
  Accelerator accelerator(options);
  EXPECT_EQ(sync_pattern(accelerator, {7}), "..S..SS ");
}

TEST(Traps, Trap10AnEvaluationInsideTheLoopDoesNotDisturbIt) {
  Scale net;
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, loader, evaluation] =
      accelerator.prepare(net, counting_loader(5), counting_loader(3));
  std::string pattern;
  int batch_number = 0;
  for ([[maybe_unused]] auto&& batch : loader) {
    for ([[maybe_unused]] auto&& inner : evaluation) {
      if (batch_number == 2) break;  // left early
    }
    try {
      for ([[maybe_unused]] auto&& inner : evaluation) throw std::runtime_error("in evaluation");
    } catch (const std::runtime_error&) {
    }
    const auto window = accelerator.accumulate(model);
    pattern += window.sync_gradients() ? 'S' : '.';
    ++batch_number;
  }
  EXPECT_EQ(pattern, ".S.SS");
}

TEST(Traps, Trap11TokenLossesAreDividedByTheTokensOfTheWindow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (const auto& x : {torch::tensor({1.0F}), torch::tensor({2.0F, 3.0F, 6.0F})}) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).sum(), x.numel());
    optimizer.step();
  }
  EXPECT_FLOAT_EQ(net->w.grad().item<float>(), 3.0F);  // the mean of 1, 2, 3, 6
}

// fp16 with a scale that is easy to see.
accelerant::AcceleratorOptions scaled_options(int64_t steps = 1, int64_t growth_interval = 2000) {
  auto options = on_cpu(Precision::fp16, steps);
  options.scaler = {.init_scale = 1024, .growth_interval = growth_interval};
  return options;
}

TEST(Traps, Trap12GradientsAreUnscaledOncePerWindow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.0);
  Accelerator accelerator(scaled_options(2));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int i = 0; i < 2; ++i) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(8)).mean());
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto norm = accelerator.clip_grad_norm_(model, 100.0);
      EXPECT_EQ(norm.has_value(), i == 1);
      if (norm) {
        EXPECT_EQ(norm->item<float>(), 8.0F);
      }
    }
    accelerator.unscale_gradients();
    optimizer.step();
  }
  EXPECT_EQ(net->w.grad().item<float>(), 8.0F);
}

TEST(Traps, Trap13TheNormIsOfUnscaledGradientsAndInfiniteOnOverflow) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(scaled_options());
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(scalar(3)).mean());
  EXPECT_EQ(accelerator.clip_grad_norm_(model, 1e9)->item<float>(), 3.0F);
  EXPECT_FALSE(optimizer.step().skipped());
  optimizer.zero_grad();
  accelerator.backward(model(scalar(kInfinity)).mean());
  EXPECT_TRUE(std::isinf(accelerator.clip_grad_norm_(model, 1.0)->item<float>()));
  EXPECT_TRUE(optimizer.step().skipped());
  EXPECT_EQ(net->w.item<float>(), -2.0F);
}

TEST(Traps, Trap14ASkippedStepChangesNothingButTheScale) {
  Scale net;
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  auto decay = accelerant::optim::step_decay(adamw, {.step_size = 1, .gamma = 0.5});
  Accelerator accelerator(scaled_options(1, 2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adamw, decay);
  const auto update = [&, &m = model, &o = optimizer, &s = scheduler](double x) {
    const auto window = accelerator.accumulate(m);
    accelerator.backward(m(scalar(x)).mean());
    o.step();
    s.step();
    o.zero_grad();
  };
  update(1);
  const auto& state =
      static_cast<torch::optim::AdamWParamState&>(*adamw.state().at(net->w.unsafeGetTensorImpl()));
  const float weight = net->w.item<float>();
  const float moment = state.exp_avg().item<float>();
  update(kInfinity);
  EXPECT_EQ(net->w.item<float>(), weight);
  EXPECT_EQ(state.exp_avg().item<float>(), moment);
  EXPECT_EQ(state.step(), 1);
  EXPECT_EQ(decay.last_step(), 1);
  EXPECT_FALSE(net->w.grad().defined());
  EXPECT_EQ(accelerator.scaler().get_scale(), 512);
  update(1);
  EXPECT_EQ(accelerator.scaler().get_scale(), 512);
  update(1);
  EXPECT_EQ(accelerator.scaler().get_scale(), 1024);
  EXPECT_EQ(state.step(), 3);
  EXPECT_EQ(decay.last_step(), 3);
}

TEST(Traps, Trap15SkipsAreSeenForOptimizersThatDecideOnTheDeviceAndStayUntilTheNextStep) {
  Scale net;
  FusedAdam adam(net->parameters(), 0.1);
  auto decay = accelerant::optim::step_decay(adam, {.step_size = 1, .gamma = 0.5});
  Accelerator accelerator(scaled_options(2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, decay);
  const auto micro_step = [&, &m = model, &o = optimizer, &s = scheduler](double x) {
    const auto window = accelerator.accumulate(m);
    accelerator.backward(m(scalar(x)).mean());
    o.step();
    s.step();
    o.zero_grad();
  };
  micro_step(1);
  EXPECT_FALSE(optimizer.step_was_skipped());
  micro_step(kInfinity);
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  EXPECT_EQ(decay.last_step(), 0);
  micro_step(1);
  EXPECT_TRUE(optimizer.step_was_skipped());  // no step has been executed since
  micro_step(1);
  EXPECT_FALSE(optimizer.step_was_skipped());
  EXPECT_EQ(decay.last_step(), 1);
}

TEST(Traps, Trap17OneScalerServesSeveralOptimizersOncePerWindow) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 1.0);
  torch::optim::SGD sgd_b(b->parameters(), 1.0);
  for (const bool scoped : {true, false}) {
    Accelerator accelerator(scaled_options(1, 1));
    auto [ma, mb, oa, ob] = accelerator.prepare(a, b, sgd_a, sgd_b);
    const float a_before = a->w.item<float>();
    const float b_before = b->w.item<float>();
    const auto iteration = [&, &ma = ma, &mb = mb, &oa = oa, &ob = ob] {
      accelerator.backward((ma(scalar(2)) + mb(scalar(3))).mean());
      accelerator.clip_grad_norm_(ma, 100);
      accelerator.clip_grad_norm_(mb, 100);
      oa.step();
      ob.step();
      oa.zero_grad();
      ob.zero_grad();
    };
    for (int i = 0; i < 2; ++i) {
      if (scoped) {
        const auto window = accelerator.accumulate(ma, mb);
        iteration();
      } else {
        iteration();
      }
    }
    EXPECT_EQ(a->w.item<float>(), a_before - 4.0F);
    EXPECT_EQ(b->w.item<float>(), b_before - 6.0F);
    // Outside of a scope the last update comes with the next backward.
    if (!scoped) accelerator.backward(ma(scalar(0)).mean());
    EXPECT_EQ(accelerator.scaler().status().updates, 2);
    EXPECT_EQ(accelerator.scaler().get_scale(), 4096);
  }
}

TEST(Traps, Trap18TheScaleStaysWhileAnyWindowGathers) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 0.0);
  torch::optim::SGD sgd_b(b->parameters(), 0.0);
  Accelerator accelerator(scaled_options(2, 1));  // grows at every update
  auto [ma, mb, oa, ob] = accelerator.prepare(a, b, sgd_a, sgd_b);
  const auto micro_step = [&](const auto& model, const auto& optimizer) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model(scalar(4)).mean());
    accelerator.unscale_gradients(optimizer);
    optimizer.step();
  };
  micro_step(ma, oa);
  micro_step(mb, ob);
  micro_step(ma, oa);  // complete, but the window of b is not
  EXPECT_EQ(accelerator.scaler().get_scale(), 1024);
  micro_step(mb, ob);
  EXPECT_EQ(b->w.grad().item<float>(), 4.0F);
  EXPECT_EQ(accelerator.scaler().get_scale(), 2048);
}

TEST(Traps, Trap18AWindowLeftHalfWayDoesNotHoldTheScalerForGood) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 0.0);
  Accelerator accelerator(scaled_options(2, 1));
  auto [ma, mb, oa] = accelerator.prepare(a, b, sgd_a);
  {
    const auto window = accelerator.accumulate(mb);
    accelerator.backward(mb(scalar(1)).mean());
  }  // and never again
  for (int i = 0; i < 4; ++i) {
    const auto window = accelerator.accumulate(ma);
    accelerator.backward(ma(scalar(1)).mean());
    EXPECT_NO_THROW(oa.step());
    oa.zero_grad();
  }
  EXPECT_EQ(accelerator.scaler().status().updates, 1);
}

TEST(Traps, Trap19Float16ParametersAreAnErrorAndBfloat16NeverScales) {
  Scale net;
  net->to(torch::kFloat16);
  Accelerator fp16(on_cpu(Precision::fp16));
  EXPECT_TRUE(contains(error_of([&] { fp16.prepare(net); }), "got w;"));
  Accelerator bf16(on_cpu(Precision::bf16));
  const auto model = bf16.prepare(net);
  bf16.backward(model(scalar(3)).mean());
  EXPECT_EQ(net->w.grad().item<float>(), 3.0F);
}

TEST(Traps, Trap20CopiesOfWeightsDoNotOutliveAStep) {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  torch::optim::SGD sgd(net->parameters(), 1.0);
  Accelerator accelerator(on_cpu(Precision::bf16));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto scope = accelerator.autocast();  // around several iterations
  const auto x = torch::ones({1, 1});
  const float before = model(x).item<float>();
  accelerator.backward(model(x).sum());
  optimizer.step();
  EXPECT_NEAR(model(x).item<float>(), before - 1.0F, 2e-2F);
}

TEST(Traps, Trap21AForwardWithoutGradientsDoesNotSpoilTheNextOne) {
  torch::nn::Linear net(2, 1);
  Accelerator accelerator(on_cpu(Precision::bf16));
  const auto model = accelerator.prepare(net);
  const auto scope = accelerator.autocast();
  {
    const torch::NoGradGuard no_grad;
    model(torch::ones({1, 2}));
  }
  accelerator.backward(model(torch::ones({1, 2})).sum());
  EXPECT_TRUE(net->weight.grad().defined());
}

TEST(Traps, Trap22Fp16OnTheCpuReallyIsFp16) {
  torch::nn::Linear net(2, 1);
  Accelerator accelerator(on_cpu(Precision::fp16));
  const auto model = accelerator.prepare(net);
  EXPECT_TRUE(accelerator.scaler().is_enabled());
  const auto x = torch::full({1, 2}, 1.0F / 3);
  EXPECT_FALSE(model(x).equal(net(x)));
  EXPECT_TRUE(torch::allclose(model(x), net(x), 1e-2, 1e-2));
}

TEST(Traps, Trap23TheUnitOfASchedule) {
  const auto steps_after_two_updates = [](accelerant::ScheduleUnit unit) {
    Scale net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto constant = accelerant::optim::constant(sgd);
    auto options = on_cpu(Precision::no, 2);
    options.schedule_unit = unit;
    Accelerator accelerator(options);
    auto [model, optimizer, scheduler, loader] =
        accelerator.prepare(net, sgd, constant, counting_loader(10, {.batch_size = 3}));
    for (auto&& [x] : loader) {  // batches of 3, 3, 3 and 1
      const auto window = accelerator.accumulate(model);
      accelerator.backward(model(x).mean());
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
    return constant.last_step();
  };
  using accelerant::ScheduleUnit;
  EXPECT_EQ(steps_after_two_updates(ScheduleUnit::update), 2);
  EXPECT_EQ(steps_after_two_updates(ScheduleUnit::unsharded_batch), 2);  // one process
  EXPECT_EQ(steps_after_two_updates(ScheduleUnit::sample), 10);
  EXPECT_EQ(steps_after_two_updates(ScheduleUnit::call), 4);

  // Without a prepared loader there are no samples to count.
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto options = on_cpu();
  options.schedule_unit = ScheduleUnit::sample;
  Accelerator accelerator(options);
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, sgd, accelerant::optim::constant(sgd));
  EXPECT_TRUE(contains(error_of([&, &s = scheduler] { s.step(); }), "counts samples"));
}

TEST(Traps, Trap24ASchedulePastItsEndStaysThere) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0).momentum(0.9));
  auto cycle = accelerant::optim::one_cycle(sgd, {.max_lr = 1.0, .total_steps = 4});
  Accelerator accelerator(on_cpu());
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, cycle);
  for (int i = 0; i < 4; ++i) scheduler.step();
  const auto at_the_end = scheduler.get_last_lr();
  for (int i = 0; i < 4; ++i) scheduler.step();
  EXPECT_EQ(scheduler.get_last_lr(), at_the_end);
}

TEST(Traps, Trap25PlateausTakeEachMetricOnceAndInTheMiddleOfAWindowToo) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  accelerant::optim::ReduceLrOnPlateau plateau(sgd, {.factor = 0.1, .patience = 1});
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, plateau);
  const auto window = accelerator.accumulate(model);  // the first micro-step of two
  scheduler.step(1.0);
  scheduler.step(1.0);
  EXPECT_EQ(scheduler.get_last_lr().front(), 1.0);  // patience 1 lets one pass
  scheduler.step(1.0);
  EXPECT_DOUBLE_EQ(scheduler.get_last_lr().front(), 0.1);
}

TEST(Traps, Trap26AnOverflowFreezesOnlyTheScheduleOfItsOptimizer) {
  Scale a;
  Scale b;
  torch::optim::SGD sgd_a(a->parameters(), 1.0);
  torch::optim::SGD sgd_b(b->parameters(), 1.0);
  auto schedule_a = accelerant::optim::constant(sgd_a);
  auto schedule_b = accelerant::optim::constant(sgd_b);
  Accelerator accelerator(scaled_options());
  auto [ma, mb, oa, ob, sa, sb] = accelerator.prepare(a, b, sgd_a, sgd_b, schedule_a, schedule_b);
  const auto window = accelerator.accumulate(ma, mb);
  accelerator.backward((ma(scalar(kInfinity)) + mb(scalar(1))).mean());
  EXPECT_TRUE(oa.step().skipped());
  EXPECT_FALSE(ob.step().skipped());
  sa.step();
  sb.step();
  EXPECT_EQ(schedule_a.last_step(), 0);
  EXPECT_EQ(schedule_b.last_step(), 1);
}

std::vector<int64_t> rows_of(const accelerant::data::Loader<std::tuple<torch::Tensor>>& loader) {
  std::vector<int64_t> rows;
  for (auto&& [x] : loader) {
    for (int64_t i = 0; i < x.size(0); ++i) rows.push_back(x[i].item<int64_t>());
  }
  return rows;
}

TEST(Traps, Trap30TheRemainderCountsTheRowsOfTheLastBatchOfOneProcessToo) {
  Accelerator accelerator(on_cpu());
  EXPECT_EQ(accelerator.prepare(counting_loader(10, {.batch_size = 4})).remainder(), 2);
  EXPECT_EQ(accelerator.prepare(counting_loader(8, {.batch_size = 4})).remainder(), 0);
}

TEST(Traps, Trap32TheOrderDoesNotDependOnTheGlobalGenerator) {
  Accelerator accelerator(on_cpu());
  const auto shuffled = [&] {
    return accelerator.prepare(counting_loader(50, {.shuffle = true, .seed = 3}));
  };
  torch::manual_seed(1);
  const auto first = rows_of(shuffled());
  torch::manual_seed(2);
  torch::rand({100});
  EXPECT_EQ(rows_of(shuffled()), first);
}

TEST(Traps, Trap34EpochsChangeTheOrderAndCanBeRepeated) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(50, {.shuffle = true, .seed = 3}));
  const auto epoch_0 = rows_of(loader);
  const auto epoch_1 = rows_of(loader);
  EXPECT_NE(epoch_0, epoch_1);
  loader.set_epoch(0);
  EXPECT_EQ(rows_of(loader), epoch_0);
  for ([[maybe_unused]] auto&& batch : loader) break;  // of epoch 1
  EXPECT_EQ(loader.epoch(), 2);
  loader.set_epoch(1);
  loader.skip_first_batches(20);
  EXPECT_EQ(rows_of(loader), std::vector<int64_t>(epoch_1.begin() + 20, epoch_1.end()));
  EXPECT_EQ(loader.epoch(), 2);  // the skip was for one loop only
  EXPECT_EQ(rows_of(loader).size(), 50U);
}

TEST(Traps, Trap35ASkippedLoaderKeepsItsRemainder) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(10, {.batch_size = 4}));
  loader.skip_first_batches(1);
  std::vector<int64_t> sizes;
  for (auto&& [x] : loader) {
    sizes.push_back(x.size(0));
    EXPECT_EQ(loader.remainder(), 2);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 2}));
}

TEST(Traps, Trap36WorkersAheadDoNotCountAsDelivered) {
  Accelerator accelerator(on_cpu());
  const auto loader =
      accelerator.prepare(counting_loader(40, {.batch_size = 2, .workers = 2, .prefetch = 4}));
  int64_t delivered = 0;
  for ([[maybe_unused]] auto&& batch : loader) {
    delivered += 2;
    EXPECT_EQ(loader.position(), delivered);
    if (delivered == 10) break;
  }
}

TEST(Traps, Trap39TheLengthIsWhatIsDelivered) {
  Accelerator accelerator(on_cpu());
  for (const bool drop_last : {false, true}) {
    for (int64_t length = 1; length < 12; ++length) {
      const auto loader =
          accelerator.prepare(counting_loader(length, {.batch_size = 4, .drop_last = drop_last}));
      int64_t delivered = 0;
      for ([[maybe_unused]] auto&& batch : loader) ++delivered;
      EXPECT_EQ(loader.length(), delivered);
    }
  }
}

TEST(Traps, Trap44SplittingDoesNotTouchTheCallersContainer) {
  const Accelerator accelerator(on_cpu());
  const std::map<std::string, std::vector<int>> values = {{"a", {1, 2, 3}}};
  const auto before = values;
  EXPECT_EQ(accelerator.split_between_processes(values), before);
  EXPECT_EQ(values, before);
}

}  // namespace
}  // namespace accelerator_test
