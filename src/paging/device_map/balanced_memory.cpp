#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerant/core/log.h"
#include "accelerant/paging/device_map.h"
#include "paging/device_map/module_sizes.h"
#include "paging/device_map/module_tree.h"

namespace accelerant {
namespace {

using Sizes = std::vector<std::pair<std::string, double>>;

void collect_class_names(const paging::ModuleTree& module, const std::string& name,
                         std::unordered_map<std::string, std::string>& classes) {
  classes.emplace(name, module.class_name);
  for (const auto& child : module.children) {
    collect_class_names(child, paging::below(name, child.name), classes);
  }
}

// The largest among the first modules of each class that must not be split.
double largest_unsplit(const paging::ModuleTree& tree, const paging::SizeTable& sizes,
                       const std::vector<std::string>& no_split) {
  if (no_split.empty()) return 0;
  std::unordered_map<std::string, std::string> classes;
  collect_class_names(tree, "", classes);
  std::set<std::string> seen;
  double largest = 0;
  for (const auto& [name, bytes] : sizes.entries()) {
    const auto found = classes.find(name);
    if (name.empty() || found == classes.end()) continue;
    if (!paging::is_any_class(found->second, no_split)) continue;
    if (seen.insert(found->second).second) largest = std::max(largest, bytes);
  }
  return largest;
}

// Those without anything below them. The model itself does not count.
std::set<std::string> leaves_of(const Sizes& sizes) {
  std::set<std::string> parents;
  for (const auto& [name, bytes] : sizes) {
    const std::size_t dot = name.rfind('.');
    if (dot != std::string::npos) parents.insert(name.substr(0, dot));
  }
  std::set<std::string> leaves;
  for (const auto& [name, bytes] : sizes) {
    if (!name.empty() && !parents.contains(name)) leaves.insert(name);
  }
  return leaves;
}

// The mean of the innermost modules, rounded down.
double mean_layer(const paging::SizeTable& table) {
  Sizes modules = table.entries();
  const std::set<std::string> tensors = leaves_of(modules);
  std::erase_if(modules, [&](const auto& entry) { return tensors.contains(entry.first); });
  const std::set<std::string> layers = leaves_of(modules);
  double sum = 0;
  for (const std::string& name : layers) sum += table.of(name);
  return std::floor(sum / std::max(static_cast<double>(layers.size()), 1.0));
}

int64_t rounded_up(double bytes) { return static_cast<int64_t>(std::ceil(bytes)); }

}  // namespace

MaxMemory get_balanced_memory(const ModelArgument& model, const BalancedMemoryOptions& options) {
  MaxMemory limits = get_max_memory(options.max_memory);
  std::vector<int> gpus;  // those that may hold something
  for (const auto& [place, limit] : limits) {
    if (place.gpu() && limit.bytes() > 0) gpus.push_back(*place.gpu());
  }
  if (gpus.empty()) return limits;
  const auto bytes_of = [&](int gpu) {
    const auto found = limits.find(gpu);
    return found == limits.end() ? int64_t{0} : found->second.bytes();
  };
  const bool low_zero = options.low_zero && gpus.size() > 1;
  if (gpus.size() == 1 && options.max_memory.empty()) {
    limits.at(gpus.front()) = static_cast<int64_t>(0.9 * static_cast<double>(bytes_of(gpus[0])));
    log(LogLevel::info,
        "We will use 90% of the memory on device " + std::to_string(gpus.front()) +
            " for storing the model, and 10% for the buffer to avoid OOM. You can set `max_memory` "
            "to a higher value to use more memory (at your own risk).");
  }

  const paging::ModuleTree tree = paging::tree_of(model.module());
  const paging::SizeTable sizes =
      paging::size_table(tree, {.dtype = options.dtype, .special_dtypes = options.special_dtypes});
  const double total = sizes.of("");
  // Whole layers never fill a GPU exactly: without something more than its part, the last layers
  // would find no room.
  const double spare =
      std::floor(1.25 * std::max(largest_unsplit(tree, sizes, options.no_split_module_classes),
                                 mean_layer(sizes)));
  const auto sharing = static_cast<double>(low_zero ? gpus.size() - 1 : gpus.size());
  const int64_t per_gpu = rounded_up(std::floor(total / sharing) + spare);

  // The last GPU keeps its limit, in case the others hold less than planned.
  for (auto gpu = gpus.begin(); gpu != gpus.end() - 1; ++gpu) {
    if (low_zero && *gpu == 0) continue;
    limits.at(*gpu) = std::min(per_gpu, bytes_of(*gpu));
  }
  if (low_zero && limits.contains(0)) {
    int64_t others = 0;
    for (int gpu = 1; gpu < static_cast<int>(gpus.size()); ++gpu) others += bytes_of(gpu);
    const int64_t rest = rounded_up(std::max(0.0, total - static_cast<double>(others)));
    limits.at(0) = std::min(rest, bytes_of(0));
  }
  return limits;
}

}  // namespace accelerant
