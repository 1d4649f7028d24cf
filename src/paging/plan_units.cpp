#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_set>
#include <utility>

#include "accelerant/core/error.h"
#include "paging/unit.h"

namespace accelerant::paging {
namespace {

using torch::nn::Module;

bool is_list(const Module& module) { return module.as<torch::nn::ModuleListImpl>() != nullptr; }
bool is_sequence(const Module& module) { return module.as<torch::nn::SequentialImpl>() != nullptr; }

bool contains_list(const Module& module) {
  return std::ranges::any_of(module.children(), [](const std::shared_ptr<Module>& child) {
    return is_list(*child) || contains_list(*child);
  });
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

class Planner {
 public:
  explicit Planner(const UnitOptions& options) : options_(options) {}

  std::vector<UnitPlan> by_structure(const Module& module) {
    std::vector<UnitPlan> rest;
    visit(module, "", rest);
    std::vector<UnitPlan> units = with_small_ones_joined(std::move(units_));
    std::ranges::move(with_small_ones_joined(std::move(rest)), std::back_inserter(units));
    return units;
  }

  std::vector<UnitPlan> by_prefix(const Module& module) {
    for (const std::string& prefix : options_.prefixes) units_.push_back({.name = prefix});
    UnitPlan rest;
    std::set<std::string> used;
    for (const auto& item : module.named_parameters()) {
      UnitPlan* longest = &rest;
      for (UnitPlan& unit : units_) {
        const bool covers =
            unit.name.empty() || item.key().starts_with(unit.name + ".") || item.key() == unit.name;
        if (covers && (longest == &rest || unit.name.size() > longest->name.size())) {
          longest = &unit;
        }
      }
      add(item.key(), item.value(), *longest);
      used.insert(longest->name);
    }
    for (const std::string& prefix : options_.prefixes) {
      if (prefix.empty() || used.contains(prefix)) continue;
      throw Error(ErrorDetails{.problem = "A prefix of UnitOptions::prefixes fits no parameter",
                               .expected = "the path of a module with parameters",
                               .got = c10::str("\"", prefix, "\""),
                               .hint = "name modules as named_modules() does: \"layers.0\""});
    }
    std::erase_if(units_, [](const UnitPlan& unit) { return unit.parameters.empty(); });
    if (!rest.parameters.empty()) units_.push_back(std::move(rest));
    return std::move(units_);
  }

 private:
  // Parameters that are not below a container go to `rest`, those of each module as a unit.
  void visit(const Module& module, const std::string& path, std::vector<UnitPlan>& rest) {
    UnitPlan own{.name = path};
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      add(joined(path, item.key()), item.value(), own);
    }
    if (!own.parameters.empty()) rest.push_back(std::move(own));
    const bool is_container = is_list(module) || is_sequence(module);
    for (const auto& item : module.named_children()) {
      const std::string child_path = joined(path, item.key());
      const Module& child = *item.value();
      if (!is_container || is_list(child) || is_sequence(child)) {
        visit(child, child_path, rest);
        continue;
      }
      if (contains_list(child)) {
        std::vector<UnitPlan> others;
        visit(child, child_path, others);
        std::ranges::move(others, std::back_inserter(units_));
        continue;
      }
      UnitPlan unit{.name = child_path};
      for (const auto& parameter : child.named_parameters()) {
        add(joined(child_path, parameter.key()), parameter.value(), unit);
      }
      if (!unit.parameters.empty()) units_.push_back(std::move(unit));
    }
  }

  void add(const std::string& name, const at::Tensor& parameter, UnitPlan& unit) const {
    if (!parameter.defined() || parameter.layout() != at::kStrided || parameter.numel() == 0) {
      return;
    }
    // By storage: the weights of a recurrent layer may share one.
    const auto bytes = parameter.unsafeGetTensorImpl()->unsafe_storage().nbytes();
    const auto elements = static_cast<int64_t>(bytes / parameter.element_size());
    if (elements <= options_.small_parameter) return;
    unit.parameters.push_back({.name = name, .parameter = parameter});
  }

  std::vector<UnitPlan> with_small_ones_joined(std::vector<UnitPlan> units) const {
    std::vector<UnitPlan> joined_units;
    bool is_open = false;  // the last unit is still too small
    for (UnitPlan& unit : units) {
      if (is_open) {
        UnitPlan& last = joined_units.back();
        last.name += ", " + unit.name;
        std::ranges::move(unit.parameters, std::back_inserter(last.parameters));
      } else {
        joined_units.push_back(std::move(unit));
      }
      is_open = bytes_of_blocks({&joined_units.back(), 1}).front() < options_.smallest_unit;
    }
    if (is_open && joined_units.size() > 1) {
      UnitPlan small = std::move(joined_units.back());
      joined_units.pop_back();
      UnitPlan& last = joined_units.back();
      last.name += ", " + small.name;
      std::ranges::move(small.parameters, std::back_inserter(last.parameters));
    }
    return joined_units;
  }

  const UnitOptions& options_;
  std::vector<UnitPlan> units_;
};

}  // namespace

std::vector<UnitPlan> plan_units(const Module& module, const UnitOptions& options) {
  Planner planner(options);
  return options.prefixes.empty() ? planner.by_structure(module) : planner.by_prefix(module);
}

std::vector<uint64_t> bytes_of_blocks(std::span<const UnitPlan> units) {
  std::vector<uint64_t> bytes;
  std::unordered_set<const c10::StorageImpl*> storages;
  for (const UnitPlan& unit : units) {
    uint64_t& own = bytes.emplace_back(0);
    for (const NamedParameter& named : unit.parameters) {
      const c10::Storage& storage = named.parameter.unsafeGetTensorImpl()->unsafe_storage();
      if (!storages.insert(storage.unsafeGetStorageImpl()).second) continue;
      own += aligned_for_block(storage.nbytes());
    }
  }
  return bytes;
}

}  // namespace accelerant::paging
