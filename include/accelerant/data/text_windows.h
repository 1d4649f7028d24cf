// Training samples for language models: windows of a text and the same windows one token later.
//
//   TextCorpus corpus = read_text("book.txt");
//   TextWindows windows(corpus.tokens, {.length = 128});        // all of the text, one after the other
//   TextCrops crops(corpus.tokens, {.length = 128, .count = 10'000, .seed = 1});  // random places
//   auto [input, target] = windows.get_batch({0, 5, 7});        // int64 [3, 128] each
//
// Both are map-style data sets: a fixed size and samples by index, the same at every call. They
// share the tensor of tokens; if it lies on a GPU, batches are made there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace accelerant::data {

// int64 [batch, length] each; target[i][j] is the token after input[i][j]. Both are contiguous.
using TextBatch = std::tuple<at::Tensor, at::Tensor>;

struct TextWindowsOptions {
  // Tokens in a window, at least 1.
  int64_t length = 128;

  // From the beginning of one window to that of the next, in tokens, at least 1. Default 0: the
  // length, so that every token is a target once.
  int64_t stride = 0;
};

class TextWindows {
 public:
  // `tokens` is [n] of any integer type. Throws Error if there is no room for one window and the
  // token after it.
  explicit TextWindows(at::Tensor tokens, const TextWindowsOptions& options = {});

  // The number of windows. Tokens at the end that do not fill one are left out.
  int64_t size() const { return size_; }

  // The windows of these indices, each 0 to size() - 1, else an Error.
  TextBatch get_batch(at::IntArrayRef indices) const;

 private:
  at::Tensor tokens_;
  int64_t length_ = 0;
  int64_t stride_ = 0;
  int64_t size_ = 0;
};

struct TextCropsOptions {
  // Tokens in a crop, at least 1.
  int64_t length = 128;

  // The number of crops, that is the size of an epoch, at least 1.
  int64_t count = 10'000;

  // Another seed gives other crops. Default 0.
  uint64_t seed = 0;
};

class TextCrops {
 public:
  // As for TextWindows.
  explicit TextCrops(at::Tensor tokens, const TextCropsOptions& options = {});

  int64_t size() const { return options_.count; }

  // Where crop `index` begins: any place with the same probability, a function of seed and index
  // alone, so the order of calls does not matter. Throws Error unless 0 <= index < size().
  int64_t begin_of(int64_t index) const;

  TextBatch get_batch(at::IntArrayRef indices) const;

 private:
  at::Tensor tokens_;
  TextCropsOptions options_;
};

}  // namespace accelerant::data
