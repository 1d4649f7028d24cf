// Behaviours that re-implementations of Accelerate tend to get wrong, as far as they concern one
// process. The numbers are those of the list this library was designed against; gaps are rows about
// several processes or about checkpoints.
// Here: schedules, data and processes.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/fused_adam.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::StepResult;

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
