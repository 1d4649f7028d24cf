#include "dist/model_check.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "accelerant/core/error.h"
#include "core/stable_hash.h"
#include "dist/message.h"

namespace accelerant::dist {
namespace {

constexpr size_t kMostDifferences = 12;

std::string describe(const at::Tensor& tensor) {
  std::string text = c10::str(tensor.scalar_type(), " ", tensor.sizes());
  // Gradients are exchanged in their memory order.
  if (!tensor.is_contiguous()) text += c10::str(" with strides ", tensor.strides());
  return text;
}

// What each process has, by rank; empty if all are equal.
std::vector<std::string> texts_that_differ(const World& world, const std::string& own) {
  const char* const name = "comparing the models";
  // Exchanges the long texts only if needed.
  const auto hashes = exchange_messages(world, name, std::to_string(stable_hash(own)));
  const bool is_same = std::all_of(hashes.begin(), hashes.end(),
                                   [&](const std::string& hash) { return hash == hashes.front(); });
  return is_same ? std::vector<std::string>{} : exchange_messages(world, name, own);
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
  option("batched_grad_copy", options.batched_grad_copy);
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
          c10::str("rank ", rank, " has ", name, " ", value, ", which rank 0 lacks"));
    } else if (found->second != value) {
      differences.push_back(c10::str("rank ", rank, " has ", name, " ", value, ", but it is ",
                                     found->second, " on rank 0"));
    }
  }
  for (const auto& [name, value] : expected) {
    if (got.contains(name)) continue;
    differences.push_back(
        c10::str("rank ", rank, " lacks ", name, " ", value, ", which rank 0 has"));
  }
  if (differences.empty()) {
    differences.push_back(
        c10::str("rank ", rank, " has the same parameters as rank 0 in a different order"));
  }
  return differences;
}

void require_same_model(const World& world, const std::vector<std::string>& lines) {
  const auto texts = texts_that_differ(world, c10::Join("\n", lines));
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
  std::string text =
      "The processes have prepared different models: expected the same parameters, buffers and "
      "options in all of them, got";
  for (const std::string& difference : differences) text += "\n  " + difference;
  throw Error(text + "\nBuild the model in the same way in every process");
}

}  // namespace accelerant::dist
