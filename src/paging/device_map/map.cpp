#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <unordered_set>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/paging/device_map.h"
#include "core/texts.h"
#include "paging/device_map/module_sizes.h"
#include "paging/device_map/module_tree.h"

namespace accelerant {
namespace {

constexpr std::size_t most_listed = 20;

bool is_at_or_below(const std::string& name, const std::string& module) {
  return module.empty() || name == module || name.starts_with(module + ".");
}

// The first `count` parts of "a.b.c".
std::string leading_parts(const std::string& name, std::size_t count) {
  std::size_t end = 0;
  for (std::size_t begin = 0; count > 0; --count) {
    end = name.find('.', begin);
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  return name.substr(0, end);
}

void group_below(DeviceMap& map, const std::string& module) {
  const std::string prefix = module.empty() ? "" : module + ".";
  std::vector<DeviceMap::Entry> inside;
  for (const auto& entry : map) {
    if (entry.first.starts_with(prefix)) inside.push_back(entry);
  }
  const bool is_uniform = std::ranges::all_of(
      inside, [&](const auto& entry) { return entry.second == inside.front().second; });
  if (inside.size() > 1 && is_uniform) {
    for (const auto& [name, place] : inside) map.erase(name);
    map.set(module, inside.front().second);
    return;
  }
  const std::size_t depth =
      module.empty() ? 1 : 2 + static_cast<std::size_t>(std::ranges::count(module, '.'));
  std::set<std::string> children;
  for (const auto& [name, place] : inside) {
    const std::string child = leading_parts(name, depth);
    if (child.size() > module.size()) children.insert(child);
  }
  for (const std::string& child : children) group_below(map, child);
}

void collect_module_names(const paging::ModuleTree& module, const std::string& name,
                          std::unordered_set<std::string>& names) {
  names.insert(name);
  for (const auto& child : module.children) {
    collect_module_names(child, paging::below(name, child.name), names);
  }
}

}  // namespace

// --- DeviceMap -----------------------------------------------------------------------------------

DeviceMap::DeviceMap(std::initializer_list<Entry> entries) {
  for (const auto& [name, place] : entries) {
    if (find(name) != nullptr) {
      throw Error("device map: '" + name + "' occurs twice; give each name one placement");
    }
    entries_.emplace_back(name, place);
  }
}

void DeviceMap::set(const std::string& name, const Placement& placement) {
  const auto found = std::ranges::find(entries_, name, &Entry::first);
  if (found != entries_.end()) {
    found->second = placement;
  } else {
    entries_.emplace_back(name, placement);
  }
}

void DeviceMap::erase(const std::string& name) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.first == name; });
}

const Placement* DeviceMap::find(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &Entry::first);
  return found == entries_.end() ? nullptr : &found->second;
}

std::optional<Placement> DeviceMap::placement_of(std::string_view name) const {
  const Entry* longest = nullptr;
  for (const Entry& entry : entries_) {
    const std::string& module = entry.first;
    const bool is_around =
        module.empty() ||
        (name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.'));
    if (is_around && (longest == nullptr || module.size() > longest->first.size())) {
      longest = &entry;
    }
  }
  return longest == nullptr ? std::nullopt : std::optional(longest->second);
}

bool DeviceMap::uses(const Placement& placement) const {
  return std::ranges::find(entries_, placement, &Entry::second) != entries_.end();
}

std::string DeviceMap::text() const {
  std::string text = "{";
  for (const auto& [name, place] : entries_) {
    if (text.size() > 1) text += ", ";
    const std::string value = place.gpu() ? place.text() : "'" + place.text() + "'";
    text += "'" + name + "': " + value;
  }
  return text + "}";
}

bool operator==(const DeviceMap& a, const DeviceMap& b) {
  return a.size() == b.size() && std::ranges::all_of(a, [&](const DeviceMap::Entry& entry) {
           const Placement* const other = b.find(entry.first);
           return other != nullptr && *other == entry.second;
         });
}

std::ostream& operator<<(std::ostream& stream, const DeviceMap& map) {
  return stream << map.text();
}

DeviceMap clean_device_map(DeviceMap device_map) {
  group_below(device_map, "");
  return device_map;
}

// --- A map and a model ---------------------------------------------------------------------------

void check_device_map(const ModelArgument& model, const DeviceMap& device_map) {
  const paging::ModuleTree tree = paging::tree_of(model.module());
  const std::vector<std::string> tensors = paging::tensor_names(tree);
  std::unordered_set<std::string> known(tensors.begin(), tensors.end());
  collect_module_names(tree, "", known);

  std::vector<std::string> unknown;
  for (const auto& [name, place] : device_map) {
    if (!known.contains(name)) unknown.push_back(name);
  }
  if (!unknown.empty()) {
    log(LogLevel::warning,
        "The following device_map keys do not match any submodules in the model: " +
            list_text(unknown, most_listed));
  }

  std::vector<std::string> uncovered;
  for (const std::string& name : tensors) {
    const bool is_covered = std::ranges::any_of(
        device_map, [&](const auto& entry) { return is_at_or_below(name, entry.first); });
    if (!is_covered) uncovered.push_back(name);
  }
  if (!uncovered.empty()) {
    throw Error("The device_map provided does not give any device for the following parameters: " +
                    list_text(uncovered, most_listed),
                "Add their modules, or an entry with the name \"\", which means everything else.");
  }
}

}  // namespace accelerant
