// Mistakes in programs of several processes. The ranks run where GoogleTest catches nothing, so an
// exception ends them as it ends a program.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <thread>

#include "accelerator/helpers.h"
#include "mistakes/said.h"
#include "support/ranks.h"

namespace mistakes {
namespace {

using accelerant::Accelerator;
using accelerator_test::counting_loader;
using accelerator_test::on_cpu;
using accelerator_test::OneWeight;
using accelerator_test::scalar;

RANK_TEST(MistakesOfRanks, TheOriginalModel, 2) {
  OneWeight t(on_cpu());
  const std::string said =
      said_by([&] { t.accelerator.backward(t.net->forward(scalar(1)).sum()); });
  EXPECT_TRUE(contains(said, "not exchanged"));
  EXPECT_TRUE(contains(said, "call the prepared model"));
}

RANK_TEST(MistakesOfRanks, ALoaderThatIsNotPrepared, 2) {
  OneWeight t(on_cpu());
  const auto batches = counting_loader(4);
  const std::string said = said_by([&] {
    for (auto&& [x] : batches) {
      t.accelerator.backward(t.model(x).sum());
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(count(said, "accelerator.prepare(net, adamw, batches)"), rank() == 0 ? 1 : 0);
}

RANK_TEST(MistakesOfRanks, DataDividedByTheProgramIsToldNothing, 2) {
  OneWeight t(on_cpu());
  const torch::Tensor part = t.accelerator.split_between_processes(torch::ones({8, 1}));
  const std::string said = said_by([&] {
    for (int64_t i = 0; i < part.size(0); ++i) {
      t.accelerator.backward(t.model(part[i]).sum());
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

// What the launcher reports about two ranks that run this.
std::string report_of(const std::function<void()>& body) {
  if (rank_test::is_rank()) {
    std::thread(body).join();
    return "";
  }
  return rank_test::run({.num_ranks = 2}).report;
}

TEST(MistakesOfRanks, OneRankThrows) {
  const std::string report = report_of([] {
    OneWeight t(on_cpu());
    if (rank() == 1) throw std::runtime_error("the label 12 is not a class");
    for (int i = 0; i < 1000; ++i) t.backward(1);
  });
  if (rank_test::is_rank()) return;
  EXPECT_TRUE(contains(report, "rank 1"));
  EXPECT_TRUE(contains(report, "the label 12 is not a class"));
}

TEST(MistakesOfRanks, OneRankSkipsABatch) {
  const std::string report = report_of([] {
    auto options = on_cpu();
    options.process_group.monitor = {.interval = std::chrono::milliseconds(50),
                                     .stuck_after = std::chrono::milliseconds(500),
                                     .mismatch_after = std::chrono::milliseconds(200)};
    OneWeight t(options);
    const auto loader = t.accelerator.prepare(counting_loader(12));
    int batch_number = 0;
    for (auto&& [x] : loader) {
      if (rank() == 1 && batch_number++ == 2) continue;
      t.accelerator.backward(t.model(x).sum());
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
    t.accelerator.wait_for_everyone();
  });
  if (rank_test::is_rank()) return;
  EXPECT_TRUE(contains(report, "rank 1"));
}

}  // namespace
}  // namespace mistakes
