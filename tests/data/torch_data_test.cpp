// Data sets and loaders of torch::data.
#include <accelerant/data/loader.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "support/expect_error.h"
#include "support/index_dataset.h"
#include "support/tensor_list.h"

namespace {

namespace data = accelerant::data;

class Squares : public torch::data::datasets::Dataset<Squares> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    const auto value = static_cast<double>(index);
    return {torch::full({2}, value * value), torch::tensor(static_cast<int64_t>(index))};
  }
  std::optional<std::size_t> size() const override { return 10; }
};

template <class L>
void expect_squares(const L& loader, bool in_order) {
  std::vector<int64_t> seen;
  for (auto& [x, y] : loader) {
    EXPECT_TRUE(torch::equal(x.select(1, 0), y.to(at::kFloat).square()));
    for (const int64_t index : list(y)) seen.push_back(index);
  }
  EXPECT_EQ(in_order ? seen : sorted(seen), counting(10));
}

TEST(TorchData, Datasets) {
  for (const int64_t workers : {0, 2}) {
    expect_squares(data::loader(Squares(), {.batch_size = 4, .shuffle = true, .workers = workers}),
                   false);
    const auto stacked = Squares().map(torch::data::transforms::Stack<>());
    expect_squares(data::loader(stacked, {.batch_size = 4, .workers = workers}), true);
    const auto normalized = Squares().map(torch::data::transforms::Lambda<torch::data::Example<>>(
        [](torch::data::Example<> example) { return example; }));
    expect_squares(data::loader(normalized, {.batch_size = 4, .workers = workers}), true);
    const auto shared = std::make_shared<Squares>();
    expect_squares(data::loader(shared, {.batch_size = 4, .workers = workers}), true);
  }
}

class Stateful : public torch::data::datasets::StatefulDataset<Stateful> {
 public:
  std::optional<std::vector<torch::data::Example<>>> get_batch(std::size_t size) override {
    if (place_ == 10) return std::nullopt;
    std::vector<torch::data::Example<>> batch;
    for (; place_ < 10 && batch.size() < size; ++place_) batch.push_back(Squares().get(place_));
    return batch;
  }
  std::optional<std::size_t> size() const override { return std::nullopt; }
  void reset() override { place_ = 0; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  std::size_t place_ = 0;
};

TEST(TorchData, StatefulDatasets) {
  for (const int64_t workers : {0, 2}) {
    const auto loader = data::loader(Stateful(), {.batch_size = 4, .workers = workers});
    expect_squares(loader, true);
    expect_squares(loader, true);
    const auto stacked = data::loader(Stateful().map(torch::data::transforms::Stack<>()),
                                      {.batch_size = 4, .workers = workers});
    expect_squares(stacked, true);
    stacked.skip_first_batches(1);
    for (auto& [x, y] : stacked) {
      EXPECT_EQ(list(y), counting(8, 4));
      EXPECT_EQ(stacked.current_samples(), 4);
      break;
    }
  }
}

class Stream : public torch::data::datasets::StreamDataset<Stream> {
 public:
  std::vector<torch::data::Example<>> get_batch(std::size_t size) override {
    std::vector<torch::data::Example<>> batch;
    for (std::size_t i = 0; i < size; ++i) batch.push_back(Squares().get(place_++));
    return batch;
  }
  std::optional<std::size_t> size() const override { return 10; }
  void reset() { place_ = 0; }

 private:
  std::size_t place_ = 0;
};

TEST(TorchData, StreamDatasetsEndAtTheirSize) {
  const auto loader = data::loader(Stream(), {.batch_size = 4});
  EXPECT_EQ(loader.length(), 3);
  expect_squares(loader, true);
  expect_squares(loader, true);
}

TEST(TorchData, Loaders) {
  for (const std::size_t torch_workers : {0, 2}) {
    const auto make = [&] {
      return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
          Squares().map(torch::data::transforms::Stack<>()),
          torch::data::DataLoaderOptions().batch_size(4).workers(torch_workers));
    };
    auto torch_loader = make();
    const auto borrowed = data::loader(data::stream_of(*torch_loader));
    expect_squares(borrowed, true);
    expect_squares(borrowed, true);
    for ([[maybe_unused]] auto& batch : borrowed) break;
    expect_squares(borrowed, true);

    const auto owned = data::loader(data::stream_of(make()), {.workers = 1});
    std::vector<bool> last;
    std::vector<int64_t> samples;
    nlohmann::json state;
    for ([[maybe_unused]] auto& batch : owned) {
      last.push_back(owned.is_last_batch());
      samples.push_back(owned.current_samples());
      if (last.size() == 1) state = owned.state_dict();
    }
    EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
    EXPECT_EQ(samples, (std::vector<int64_t>{4, 4, 2}));
    EXPECT_EQ(state.at("position"), 1);  // it counts batches
    owned.load_state_dict(state);
    for (auto& [x, y] : owned) {
      EXPECT_EQ(list(y)[0], 4);
      break;
    }
  }
  auto torch_loader = torch::data::make_data_loader(Squares(), 4);
  EXPECT_TRUE(
      contains(error_of([&] { data::loader(data::stream_of(*torch_loader), {.batch_size = 2}); }),
               "Ready batches"));
  int64_t count = 0;  // batches of examples, as they come
  for (const std::vector<torch::data::Example<>>& batch :
       data::loader(data::stream_of(*torch_loader))) {
    count += static_cast<int64_t>(batch.size());
  }
  EXPECT_EQ(count, 10);
}

}  // namespace
