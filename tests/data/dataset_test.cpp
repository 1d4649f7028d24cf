// All forms of data sets.
#include <accelerant/data/loader.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "support/expect_error.h"
#include "support/index_dataset.h"
#include "support/tensor_list.h"

namespace {

namespace data = accelerant::data;
using Pair = std::tuple<at::Tensor, at::Tensor>;

// --- tensors -------------------------------------------------------------------------------------

TEST(Tensors, BatchesAreRows) {
  const at::Tensor images = torch::arange(24, at::kFloat).reshape({6, 2, 2});
  const at::Tensor labels = torch::arange(6);
  const data::Loader<Pair> loader =
      data::loader(data::tensors(images, labels), {.batch_size = 4, .shuffle = true});
  std::vector<int64_t> seen;
  for (auto&& [x, y] : loader) {
    EXPECT_TRUE(torch::equal(x, images.index_select(0, y)));
    EXPECT_EQ(x.scalar_type(), at::kFloat);
    for (const int64_t label : list(y)) seen.push_back(label);
    x.zero_();  // a copy: the data set stays unchanged
  }
  EXPECT_EQ(sorted(seen), counting(6));
  EXPECT_EQ(images.sum().item<float>(), 276.F);
}

TEST(Tensors, OfAnyKind) {
  const at::Tensor odd = torch::arange(12).reshape({3, 4}).t();            // not contiguous
  const at::Tensor narrow = torch::arange(10, at::kFloat).slice(0, 3, 7);  // a view with an offset
  const at::Tensor none = torch::empty({4, 0});
  const at::Tensor complex = torch::complex(narrow, narrow).conj();
  const at::Tensor flags = torch::tensor({true, false, true, true});
  for (auto&& [a, b, c, d, e] :
       data::loader(data::tensors(odd, narrow, none, complex, flags), {.batch_size = 3})) {
    const int64_t first = b[0].item<int64_t>() - 3;
    const int64_t end = first + a.size(0);
    EXPECT_TRUE(torch::equal(a, odd.slice(0, first, end)));
    EXPECT_TRUE(torch::equal(b, narrow.slice(0, first, end)));
    EXPECT_EQ(c.sizes(), (at::IntArrayRef{a.size(0), 0}));
    EXPECT_TRUE(torch::equal(d, complex.slice(0, first, end)));
    EXPECT_TRUE(torch::equal(e, flags.slice(0, first, end)));
  }
}

TEST(Tensors, MustHaveRowsAndOneLength) {
  EXPECT_TRUE(contains(error_of([] { data::tensors(torch::ones({3}), torch::ones({4})); }),
                       "length 4 of tensor 1"));
  EXPECT_TRUE(
      contains(error_of([] { data::tensors(torch::tensor(1.0)); }), "a scalar as tensor 0"));
  EXPECT_TRUE(contains(error_of([] { data::tensors(at::Tensor()); }), "undefined"));
  EXPECT_TRUE(contains(error_of([] {
                         data::tensors(torch::ones({3})).get_batch({1, 3});
                       }),
                       "got 3"));
}

// --- Forms of data sets --------------------------------------------------------------------------

struct BySpan {
  int size() const { return 5; }
  at::Tensor get_batch(std::span<const int64_t> indices) const {
    return torch::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()));
  }
};

struct VectorOfSamples {
  std::size_t size() const { return 5; }
  std::vector<std::pair<int, float>> get_batch(at::ArrayRef<std::size_t> indices) {
    std::vector<std::pair<int, float>> samples;
    for (const std::size_t index : indices) samples.emplace_back(static_cast<int>(index), 0.5F);
    return samples;
  }
};

TEST(Datasets, ByBatch) {
  std::vector<int64_t> seen;
  for (const at::Tensor& batch : data::loader(BySpan{}, {.batch_size = 2})) {
    for (const int64_t index : list(batch)) seen.push_back(index);
  }
  EXPECT_EQ(seen, counting(5));
  seen.clear();
  for (auto& [index, half] : data::loader(VectorOfSamples{}, {.batch_size = 2, .workers = 2})) {
    for (const int64_t i : list(index)) seen.push_back(i);
    EXPECT_EQ(half.scalar_type(), at::kFloat);
  }
  EXPECT_EQ(seen, counting(5));
}

TEST(Datasets, LvaluesAreCopiedPointersShared) {
  struct Growing {
    std::vector<int64_t> values;
    int64_t size() const { return static_cast<int64_t>(values.size()); }
    int64_t get(int64_t index) const { return values[static_cast<std::size_t>(index)]; }
  };
  Growing dataset{{1, 2, 3}};
  const auto copied = index_loader(dataset, {.batch_size = 3});
  dataset.values[0] = 9;
  EXPECT_EQ(loop_over(copied), (IndexBatches{{1, 2, 3}}));
  const auto shared = std::make_shared<Growing>(dataset);
  const auto loader = data::loader(shared, {.batch_size = 3}, as_list);
  shared->values[1] = 8;
  EXPECT_EQ(loop_over(loader), (IndexBatches{{9, 8, 3}}));
  const std::shared_ptr<const Growing> constant = shared;
  EXPECT_EQ(loop_over(data::loader(constant, {.batch_size = 3}, as_list)),
            (IndexBatches{{9, 8, 3}}));
  const auto owned = data::loader(std::make_unique<Growing>(dataset), {.batch_size = 3}, as_list);
  EXPECT_EQ(loop_over(owned), (IndexBatches{{9, 2, 3}}));
}

TEST(Datasets, Mapped) {
  const auto doubled = data::map(IndexDataset{4}, [](int64_t sample) { return 2 * sample; });
  EXPECT_EQ(loop_over(index_loader(doubled, {.batch_size = 4})), (IndexBatches{{0, 2, 4, 6}}));
  const auto noisy = data::map(doubled, [](int64_t sample, data::Random& random) {
    return 100 * sample + random.integer(100);
  });
  const auto loader = index_loader(noisy, {.batch_size = 4, .seed = 1});
  const auto with_workers = index_loader(noisy, {.batch_size = 4, .seed = 1, .workers = 2});
  const IndexBatches first = loop_over(loader);
  EXPECT_EQ(loop_over(with_workers), first);
  EXPECT_NE(loop_over(loader), first);  // in another epoch
  loader.set_epoch(0);
  EXPECT_EQ(loop_over(loader), first);
  // A function with its own state: each worker has a copy.
  const auto counted = data::map(IndexDataset{4}, [calls = int64_t{0}](int64_t sample) mutable {
    ++calls;
    return sample;
  });
  EXPECT_EQ(joined(loop_over(index_loader(counted, {.batch_size = 1, .workers = 2}))), counting(4));
  // Rows of tensors one by one, batches of a data set that offers nothing else, streams.
  const auto rows = data::map(
      data::tensors(torch::arange(4)),
      [](const std::tuple<at::Tensor>& row) { return std::get<0>(row).item<int64_t>() + 1; });
  EXPECT_EQ(loop_over(index_loader(rows, {.batch_size = 4})), (IndexBatches{{1, 2, 3, 4}}));
  const auto batches = data::map(BySpan{}, [](const at::Tensor& batch) { return batch.add(1); });
  for (const at::Tensor& batch : data::loader(batches, {.batch_size = 5})) {
    EXPECT_EQ(list(batch), counting(6, 1));
  }
}

TEST(Datasets, RandomGivesATorchGenerator) {
  struct Drawing {
    int64_t size() const { return 6; }
    at::Tensor get(int64_t, data::Random& random) const {
      at::Tensor numbers = torch::rand({2}, random.generator());
      return torch::cat({numbers, torch::rand({2}, random.generator())});
    }
  };
  const auto all = [](int64_t workers) {
    for (const at::Tensor& batch :
         data::loader(Drawing{}, {.batch_size = 6, .seed = 3, .workers = workers})) {
      return batch;
    }
    return at::Tensor();
  };
  EXPECT_TRUE(torch::equal(all(0), all(2)));
  EXPECT_EQ(std::get<0>(at::_unique(all(0))).numel(), 24);
}

TEST(Datasets, DefaultSeedIsThatOfTorch) {
  const auto order = [](uint64_t seed) {
    torch::manual_seed(seed);
    const auto loader = index_loader(30, {.batch_size = 30, .shuffle = true});
    const IndexBatches first = loop_over(loader);
    EXPECT_EQ(loader.seed(), seed);
    torch::manual_seed(seed + 100);  // ignored once the seed was read
    loader.set_epoch(0);
    EXPECT_EQ(loop_over(loader), first);
    return first;
  };
  EXPECT_EQ(order(5), order(5));
  EXPECT_NE(order(5), order(6));
  torch::rand({3});  // drawing numbers does not change it
}

// --- Streams -------------------------------------------------------------------------------------

struct Lines {
  struct Calls {
    std::vector<int64_t> resets, skips;
    int reads = 0;
  };
  std::shared_ptr<Calls> calls = std::make_shared<Calls>();
  int64_t place = 0;

  void reset(int64_t epoch) {
    calls->resets.push_back(epoch);
    place = 0;
  }
  void skip(int64_t n) {
    calls->skips.push_back(n);
    place += n;
  }
  int64_t size() const { return 10; }
  std::optional<int64_t> next() {
    ++calls->reads;
    return place < 10 ? std::optional(place++) : std::nullopt;
  }
};

TEST(Streams, KnowTheirLastBatch) {
  const Lines lines;
  const auto loader = index_loader(lines, {.batch_size = 4});
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Course course = course_of(loader);
    EXPECT_EQ(course.last, (std::vector<bool>{false, false, true}));
    EXPECT_EQ(course.left, (std::vector<int64_t>{3, 2, 1}));
    EXPECT_EQ(course.samples, (std::vector<int64_t>{4, 4, 2}));
    EXPECT_EQ(course.position, (std::vector<int64_t>{4, 8, 10}));
  }
  EXPECT_EQ(lines.calls->resets, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(loader.length(), 3);
  EXPECT_EQ(loader.remainder(), 2);
  EXPECT_EQ(loop_over(index_loader(Lines{}, {.batch_size = 4, .drop_last = true})).size(), 2U);
}

TEST(Streams, ResumeBySkipping) {
  const Lines lines;
  const auto loader = index_loader(lines, {.batch_size = 3});
  nlohmann::json state;
  for (const IndexBatch& batch : loader) {
    state = loader.state_dict();
    if (batch[0] == 3) break;
  }
  EXPECT_EQ(state.at("position"), 6);  // samples read ahead do not count
  const auto resumed = index_loader(lines, {.batch_size = 2});
  resumed.load_state_dict(state);
  EXPECT_EQ(loop_over(resumed), (IndexBatches{{6, 7}, {8, 9}}));
  EXPECT_EQ(lines.calls->skips, (std::vector<int64_t>{6}));
  const auto other = index_loader(lines, {.batch_size = 4});
  other.load_state_dict(state);
  EXPECT_EQ(other.batches_left(), 1);  // one full batch is left, not two started ones
  EXPECT_EQ(other.remainder(), 0);
  resumed.skip_first_batches(4);
  EXPECT_EQ(resumed.batches_left(), 1);
  EXPECT_EQ(loop_over(resumed), (IndexBatches{{8, 9}}));
}

TEST(Streams, WithoutSkipReadAndDiscard) {
  struct Plain {
    int64_t place = 0;
    void reset() { place = 0; }
    std::optional<int64_t> next() { return place < 7 ? std::optional(place++) : std::nullopt; }
  };
  const auto loader = index_loader(Plain{}, {.batch_size = 2});
  EXPECT_EQ(loader.length(), std::nullopt);
  EXPECT_EQ(loader.batches_left(), std::nullopt);
  loader.skip_first_batches(2);
  EXPECT_EQ(loop_over(loader), (IndexBatches{{4, 5}, {6}}));
  loader.skip_first_batches(20);
  EXPECT_TRUE(loop_over(loader).empty());
  EXPECT_EQ(loop_over(loader).size(), 4U);
  const auto mapped = data::map(Plain{}, [](int64_t value) { return -value; });
  EXPECT_EQ(loop_over(index_loader(mapped, {.batch_size = 7})),
            (IndexBatches{{0, -1, -2, -3, -4, -5, -6}}));
}

TEST(Streams, Refusals) {
  EXPECT_TRUE(contains(error_of([] { index_loader(Lines{}, {.shuffle = true}); }),
                       "The order of a stream"));
  const auto loader = index_loader(Lines{});
  const auto second = loader.placed({});
  const auto running = loader.begin();
  EXPECT_TRUE(contains(error_of([&] { second.begin(); }), "one stream"));
  EXPECT_FALSE(second.state()->is_active());
}

}  // namespace
