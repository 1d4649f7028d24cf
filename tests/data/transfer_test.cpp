// Batches that go to a device.
#include <accelerant/data/loader.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/on_device.h"

namespace {

namespace data = accelerant::data;

class LoaderOn : public OnDevice {};
ON_EVERY_DEVICE(LoaderOn);

TEST_P(LoaderOn, TensorsArriveWithTheirValues) {
  const at::Tensor x = torch::randn({1000, 64});
  const at::Tensor y = torch::arange(1000);
  for (const int64_t workers : {0, 2}) {
    for (const bool non_blocking : {true, false}) {
      const auto loader =
          data::loader(data::tensors(x, y), {.batch_size = 16, .shuffle = true, .workers = workers})
              .placed({.device = device(), .non_blocking = non_blocking});
      int64_t rows = 0;
      for (auto&& [a, b] : loader) {
        ASSERT_EQ(a.device(), device());
        ASSERT_TRUE(torch::equal(a.cpu(), x.index_select(0, b.cpu())));
        rows += a.size(0);
      }
      EXPECT_EQ(rows, 1000);
    }
  }
}

// On a GPU each batch takes milliseconds to copy, so a missing wait would show.
TEST_P(LoaderOn, LargeCopiesAreWaitedFor) {
  const at::Tensor x =
      torch::arange(64, at::kFloat).unsqueeze(1).repeat({1, on_cuda() ? 1 << 20 : 64});
  const at::Tensor there = x.to(device());
  for (const int64_t workers : {0, 2}) {
    const auto loader = data::loader(data::tensors(x), {.batch_size = 16, .workers = workers})
                            .placed({.device = device()});
    at::Tensor wrong = torch::zeros({}, options(at::kLong));
    int64_t first = 0;
    for (auto& [batch] : loader) {  // nothing in here waits for the device
      wrong += batch.ne(there.slice(0, first, first + 16)).sum();
      first += 16;
    }
    EXPECT_EQ(first, 64);
    EXPECT_EQ(wrong.item<int64_t>(), 0);
  }
}

TEST_P(LoaderOn, BatchesKeptForLaterStayWhole) {
  const at::Tensor x = torch::arange(4096 * 32, at::kFloat).reshape({4096, 32});
  const auto loader =
      data::loader(data::tensors(x), {.batch_size = 64, .workers = 2}).placed({.device = device()});
  std::vector<at::Tensor> kept;
  for (auto& [batch] : loader) {
    kept.push_back(batch.mul(2));  // the batch itself is released while this may still be running
  }
  EXPECT_TRUE(torch::equal(torch::cat(kept).cpu(), x.mul(2)));
}

TEST_P(LoaderOn, OnlyWhatIsATensorMoves) {
  struct Dataset {
    int64_t size() const { return 4; }
    std::map<std::string, at::Tensor> get(int64_t index) const {
      return {{"value", torch::full({2}, index)}};
    }
  };
  for (auto& batch : data::loader(Dataset{}, {.batch_size = 2}).placed({.device = device()})) {
    EXPECT_EQ(batch.at("value").device(), device());
  }
  const auto stays =
      data::loader(Dataset{}, {.batch_size = 2}).placed({.device = device(), .move = false});
  for (auto& batch : stays) EXPECT_TRUE(batch.at("value").device().is_cpu());
}

TEST_P(LoaderOn, DataSetsOnTheDevice) {
  const at::Tensor x = torch::arange(300 * 8, options()).reshape({300, 8});
  for (const int64_t workers : {0, 2}) {
    const auto loader = data::loader(data::tensors(x), {.batch_size = 32, .workers = workers})
                            .placed({.device = device()});
    std::vector<at::Tensor> all;
    for (auto& [batch] : loader) all.push_back(batch.add(1));
    EXPECT_TRUE(torch::equal(torch::cat(all), x.add(1)));
  }
  const auto to_cpu = data::loader(data::tensors(x), {.batch_size = 300}).placed({});
  for (auto& [batch] : to_cpu) EXPECT_TRUE(batch.device().is_cpu());
}

TEST_P(LoaderOn, ABatchThatNobodyUnderstandsCannotMove) {
  struct Hidden {
    at::Tensor hidden;
  };
  const auto loader = data::loader(data::tensors(torch::ones({4})), {}, [](const auto& batch) {
                        return Hidden{std::get<0>(batch)};
                      }).placed({.device = device()});
  const auto loop = [&] {
    for (auto& batch : loader) EXPECT_TRUE(batch.hidden.defined());
  };
  if (on_cuda()) {
    EXPECT_TRUE(contains(error_of(loop), "visit_fields"));
  } else {
    loop();
  }
}

TEST_P(LoaderOn, LeavingEarlyIsClean) {
  const auto loader =
      data::loader(data::tensors(torch::randn({512, 16})), {.batch_size = 4, .workers = 2})
          .placed({.device = device()});
  for (int i = 0; i < 20; ++i) {
    int taken = 0;
    for ([[maybe_unused]] auto& batch : loader) {
      if (++taken > i) break;
    }
  }
  EXPECT_EQ(loader.epoch(), 20);
}

}  // namespace
