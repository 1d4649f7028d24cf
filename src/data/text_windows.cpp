#include "accelerant/data/text_windows.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "data/describe.h"

namespace accelerant::data {
namespace {

void check_at_least_one(int64_t value, const char* name) {
  if (value >= 1) return;
  throw Error(ErrorDetails{.problem = std::string("text windows: bad ") + name,
                           .expected = "1 or more",
                           .got = std::to_string(value)});
}

void check(const at::Tensor& tokens, int64_t length) {
  check_at_least_one(length, "length");
  if (!tokens.defined() || tokens.dim() != 1 || !at::isIntegralType(tokens.scalar_type(), false)) {
    throw Error(ErrorDetails{.problem = "text windows: bad tokens",
                             .expected = "integers in one dimension",
                             .got = describe(tokens)});
  }
  // Not length + 1, which could overflow.
  if (tokens.size(0) <= length) {
    throw Error(
        ErrorDetails{.problem = "the text is too short for one window and the token after it",
                     .expected = c10::str("more than ", length, " tokens"),
                     .got = std::to_string(tokens.size(0)),
                     .hint = "take shorter windows"});
  }
}

void check_index(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return;
  throw Error(ErrorDetails{.problem = "there is no such text window",
                           .expected = c10::str("an index of 0 to ", size - 1),
                           .got = std::to_string(index)});
}

// One gather for input and target together.
TextBatch gather(const at::Tensor& tokens, const std::vector<int64_t>& begins, int64_t length) {
  const auto on_device = tokens.options().dtype(at::kLong);
  const at::Tensor rows = at::tensor(begins, at::kLong).to(tokens.device()).unsqueeze(1);
  const at::Tensor places = rows.add(at::arange(length + 1, on_device));
  const at::Tensor window = tokens.take(places).to(at::kLong);
  return {window.slice(1, 0, length).contiguous(), window.slice(1, 1).contiguous()};
}

// SplitMix64: every bit of the result depends on every bit of the argument.
uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

}  // namespace

TextWindows::TextWindows(at::Tensor tokens, const TextWindowsOptions& options)
    : tokens_(std::move(tokens)),
      length_(options.length),
      stride_(options.stride == 0 ? options.length : options.stride) {
  check(tokens_, length_);
  check_at_least_one(stride_, "stride");
  size_ = (tokens_.size(0) - length_ - 1) / stride_ + 1;
}

TextBatch TextWindows::get_batch(at::IntArrayRef indices) const {
  std::vector<int64_t> begins;
  begins.reserve(indices.size());
  for (const int64_t index : indices) {
    check_index(index, size_);
    begins.push_back(index * stride_);
  }
  return gather(tokens_, begins, length_);
}

TextCrops::TextCrops(at::Tensor tokens, const TextCropsOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  check(tokens_, options_.length);
  check_at_least_one(options_.count, "count");
}

int64_t TextCrops::begin_of(int64_t index) const {
  check_index(index, options_.count);
  const auto places = static_cast<unsigned __int128>(tokens_.size(0) - options_.length);
  const uint64_t random = mix(mix(options_.seed) ^ static_cast<uint64_t>(index));
  return static_cast<int64_t>(places * random >> 64);
}

TextBatch TextCrops::get_batch(at::IntArrayRef indices) const {
  std::vector<int64_t> begins;
  begins.reserve(indices.size());
  for (const int64_t index : indices) begins.push_back(begin_of(index));
  return gather(tokens_, begins, options_.length);
}

}  // namespace accelerant::data
