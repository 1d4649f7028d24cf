// A text as separate documents of uneven length, and random batches of them.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/char_text.h"

namespace examples {

// Marks a position without a target: the default ignore_index of torch's cross entropy.
constexpr int64_t no_target = -100;

struct DocumentBatch {
  torch::Tensor tokens;   // int64 [batch, longest], padded with 0
  torch::Tensor targets;  // the token after each one; no_target if there is none
  int64_t count = 0;      // targets that count
};

// The paragraphs of a text: an empty line ends a document.
class Documents {
 public:
  explicit Documents(const std::string& path) : text_(path) {
    const int64_t newline = text_.token('\n');
    const torch::Tensor& tokens = text_.tokens();
    const auto* const data = tokens.data_ptr<int64_t>();
    int64_t begin = 0;
    for (int64_t i = 1; i <= tokens.size(0); ++i) {
      const bool ends = i == tokens.size(0) || (data[i] == newline && data[i - 1] == newline);
      if (!ends) continue;
      if (i - begin >= 2) documents_.push_back(tokens.slice(0, begin, i));
      begin = i + 1;
    }
    if (documents_.empty()) {
      throw std::runtime_error(path + ": has no paragraph to learn from");
    }
  }

  const CharText& text() const { return text_; }
  std::size_t size() const { return documents_.size(); }

  // The first tokens of the text.
  torch::Tensor beginning(int64_t tokens) const { return documents_[0].slice(0, 0, tokens); }

  // Random documents, each read from a random place on, for at most `longest` tokens.
  DocumentBatch random_batch(int64_t batch_size, int64_t longest) const {
    DocumentBatch batch{.tokens = torch::zeros({batch_size, longest}, torch::kLong),
                        .targets = torch::full({batch_size, longest}, no_target, torch::kLong)};
    for (int64_t row = 0; row < batch_size; ++row) {
      const auto& document = documents_[static_cast<std::size_t>(below(documents_.size()))];
      const int64_t begin = below(static_cast<std::size_t>(document.size(0) - 1));
      const int64_t length = std::min(longest, document.size(0) - 1 - begin);
      batch.tokens[row].slice(0, 0, length).copy_(document.slice(0, begin, begin + length));
      batch.targets[row]
          .slice(0, 0, length)
          .copy_(document.slice(0, begin + 1, begin + 1 + length));
      batch.count += length;
    }
    return batch;
  }

  std::vector<DocumentBatch> random_batches(int64_t count, int64_t batch_size,
                                            int64_t longest) const {
    std::vector<DocumentBatch> batches;
    for (int64_t i = 0; i < count; ++i) batches.push_back(random_batch(batch_size, longest));
    return batches;
  }

 private:
  static int64_t below(std::size_t limit) {
    return torch::randint(static_cast<int64_t>(limit), {1}, torch::kLong).item<int64_t>();
  }

  CharText text_;
  std::vector<torch::Tensor> documents_;
};

inline int64_t count_targets(const std::vector<DocumentBatch>& batches) {
  int64_t count = 0;
  for (const DocumentBatch& batch : batches) count += batch.count;
  return count;
}

}  // namespace examples
