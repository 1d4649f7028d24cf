// Prepared schedules: what they count, and when they do not advance.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"
#include "support/expect_error.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;
using accelerant::ScheduleUnit;

TEST(Schedules, TheUnitDecidesWhatAStepCounts) {
  const auto steps_after_two_updates = [](ScheduleUnit unit) {
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

TEST(Schedules, ASchedulePastItsEndStaysThere) {
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

TEST(Schedules, PlateausTakeEachMetricOnceAndInTheMiddleOfAWindowToo) {
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  accelerant::optim::ReduceLrOnPlateau plateau(sgd, {.factor = 0.1, .patience = 1});
  Accelerator accelerator(on_cpu(Precision::no, 2));
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, plateau);
  const auto window = accelerator.accumulate(model);  // the first micro-step of two
  scheduler.step(1.0);
  scheduler.step(1.0);
  EXPECT_EQ(scheduler.get_last_lr().front(), 1.0);  // patience 1 tolerates one
  scheduler.step(1.0);
  EXPECT_DOUBLE_EQ(scheduler.get_last_lr().front(), 0.1);
}

TEST(Schedules, AnOverflowFreezesOnlyTheScheduleOfItsOptimizer) {
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

}  // namespace
}  // namespace accelerator_test
