#include "dist/model_check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include "accelerant/core/error.h"
#include "dist/exchange.h"
#include "dist/groups.h"

namespace accelerant::dist {
namespace {

constexpr size_t kMostDifferences = 12;

std::string describe(const at::Tensor& tensor) {
  std::string text = c10::str(tensor.scalar_type(), " ", tensor.sizes());
  // Gradients are exchanged in the order they have in memory.
  if (!tensor.is_contiguous()) text += c10::str(" with strides ", tensor.strides());
  return text;
}

// The same on all machines, unlike std::hash.
int64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  }
  int64_t bits = 0;
  std::memcpy(&bits, &hash, sizeof bits);
  return bits;
}

std::vector<at::Tensor> gather(c10d::ProcessGroup& group, at::Tensor mine) {
  std::vector<std::vector<at::Tensor>> all(1);
  for (int rank = 0; rank < group.getSize(); ++rank) all[0].push_back(at::empty_like(mine));
  std::vector<at::Tensor> inputs = {std::move(mine)};
  group.allgather(all, inputs)->wait();
  return std::move(all[0]);
}

std::vector<int64_t> gather_numbers(c10d::ProcessGroup& group, int64_t mine) {
  std::vector<int64_t> numbers;
  for (const at::Tensor& number : gather(group, at::full({1}, mine, at::kLong))) {
    numbers.push_back(number.item<int64_t>());
  }
  return numbers;
}

std::vector<std::string> gather_texts(c10d::ProcessGroup& group, const std::string& mine) {
  const auto sizes = gather_numbers(group, static_cast<int64_t>(mine.size()));
  at::Tensor padded = at::zeros({1 + *std::max_element(sizes.begin(), sizes.end())}, at::kByte);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  std::vector<std::string> texts;
  for (const at::Tensor& text : gather(group, padded)) {
    texts.emplace_back(static_cast<const char*>(text.const_data_ptr()),
                       static_cast<size_t>(sizes[texts.size()]));
  }
  return texts;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

using NamedLines = std::map<std::string, std::string>;

NamedLines by_name(const std::vector<std::string>& lines) {
  NamedLines named;
  for (const std::string& line : lines) {
    const size_t tab = line.find('\t');
    named[line.substr(0, tab)] = line.substr(std::min(line.size(), tab + 1));
  }
  return named;
}

}  // namespace

std::vector<std::string> describe_model(const std::vector<NamedParameter>& parameters,
                                        const std::vector<at::Tensor>& buffers,
                                        const DataParallelOptions& options) {
  std::vector<std::string> lines;
  for (const NamedParameter& parameter : parameters) {
    lines.push_back(c10::str(parameter.name, "\t", describe(parameter.value),
                             parameter.value.requires_grad() ? "" : ", frozen",
                             parameter.sparse_gradient ? ", with sparse gradients" : ""));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    lines.push_back(c10::str("buffer ", i, "\t", describe(buffers[i])));
  }
  const auto option = [&](const char* name, bool value) {
    lines.push_back(c10::str(name, "\t", value ? "true" : "false"));
  };
  option("broadcast_buffers", options.broadcast_buffers);
  option("find_unused_parameters", options.find_unused_parameters);
  option("static_graph", options.static_graph);
  option("gradient_as_bucket_view", options.gradient_as_bucket_view);
  lines.push_back(c10::str("bucket_cap_mb\t", options.bucket_cap_mb.value_or(0)));
  lines.push_back(c10::str("comm_hook\t", static_cast<int>(options.comm_hook.hook), " in ",
                           static_cast<int>(options.comm_hook.wrapper)));
  return lines;
}

std::vector<std::string> model_differences(const std::vector<std::string>& first,
                                           const std::vector<std::string>& other, int64_t rank) {
  if (first == other) return {};
  std::vector<std::string> differences;
  const NamedLines expected = by_name(first);
  const NamedLines got = by_name(other);
  for (const auto& [name, value] : got) {
    const auto found = expected.find(name);
    if (found == expected.end()) {
      differences.push_back(
          c10::str("rank ", rank, " has ", name, " ", value, ", which rank 0 has not"));
    } else if (found->second != value) {
      differences.push_back(c10::str("rank ", rank, " has ", name, " ", value, ", which is ",
                                     found->second, " on rank 0"));
    }
  }
  for (const auto& [name, value] : expected) {
    if (got.contains(name)) continue;
    differences.push_back(
        c10::str("rank ", rank, " has no ", name, " ", value, ", which rank 0 has"));
  }
  if (differences.empty()) {
    differences.push_back(
        c10::str("rank ", rank, " has the same parameters in another order than rank 0"));
  }
  return differences;
}

void require_same_model(const World& world, const std::vector<std::string>& lines) {
  const std::string text = c10::Join("\n", lines);
  const auto texts = exchange(world, "comparing the models", [&](Groups& groups) {
    // The long texts only if they are needed.
    const auto hashes = gather_numbers(*groups.control, hash_of(text));
    const bool is_same = std::all_of(hashes.begin(), hashes.end(),
                                     [&](int64_t hash) { return hash == hashes.front(); });
    return is_same ? std::vector<std::string>{} : gather_texts(*groups.control, text);
  });
  std::vector<std::string> differences;
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const auto more =
        model_differences(lines_of(texts[0]), lines_of(texts[rank]), static_cast<int64_t>(rank));
    differences.insert(differences.end(), more.begin(), more.end());
  }
  if (differences.empty()) return;
  if (differences.size() > kMostDifferences) {
    const size_t left = differences.size() - kMostDifferences;
    differences.resize(kMostDifferences);
    differences.push_back(c10::str("and ", left, " more"));
  }
  throw Error(ErrorDetails{.problem = "The processes have prepared different models",
                           .expected = "the same parameters, buffers and options in all of them",
                           .got = c10::Join("; ", differences),
                           .hint = "build the model in the same way in every process"});
}

}  // namespace accelerant::dist
