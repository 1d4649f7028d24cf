#include "paging/device_map/allocation.h"

#include <algorithm>

namespace accelerant::paging {
namespace {

// By Accelerate's rule, which also finds "1." in "layers.11.weight.".
bool seems_inside(const std::string& tensor, const std::string& part) {
  return (tensor + ".").find(part + ".") != std::string::npos;
}

Parts::const_iterator owner_of(const std::string& tensor, const Parts& parts) {
  return std::ranges::find_if(parts, [&](const Part& part) {
    return tensor == part.name || tensor.starts_with(part.name + ".");
  });
}

Parts::iterator find_part(Parts& parts, const std::string& name) {
  return std::ranges::find(parts, name, &Part::name);
}

// Puts new parts where an old one is.
void replace_part(Parts& parts, Parts::iterator old, const std::vector<Part>& inside) {
  parts.insert(parts.erase(old), inside.begin(), inside.end());
}

}  // namespace

std::vector<std::string> tied_outside(const AllocationModel& model, const std::string& part) {
  std::vector<std::string> outside;
  for (const auto& group : model.tied) {
    const auto is_inside = [&](const std::string& name) { return seems_inside(name, part); };
    if (std::ranges::none_of(group, is_inside)) continue;
    std::ranges::copy_if(group, std::back_inserter(outside), std::not_fn(is_inside));
  }
  return outside;
}

PartWithTies with_ties(const AllocationModel& model, const Part& part,
                       const std::vector<std::string>& tied, const Parts& parts,
                       const Parts* more) {
  PartWithTies result{.bytes = model.sizes.of(part.name)};
  for (const std::string& tensor : tied) {
    auto owner = owner_of(tensor, parts);
    bool is_found = owner != parts.end();
    if (!is_found && more != nullptr) {
      owner = owner_of(tensor, *more);
      is_found = owner != more->end();
    }
    if (!is_found) continue;
    result.bytes += model.sizes.of(owner->name) - model.sizes.of(tensor);
    result.owners.push_back(*owner);
  }
  return result;
}

std::vector<Part> divided(const AllocationModel& model, const Part& part) {
  if (part.module == nullptr || children_of(*part.module, part.name).empty() ||
      is_any_class(part.module->class_name, model.no_split)) {
    return {};
  }
  return parts_of_module(part);
}

std::optional<Part> take_fitting(const AllocationModel& model, Parts& parts, double limit) {
  if (limit < 0) return std::nullopt;
  std::optional<Part> found;
  for (Parts to_search = parts; !found && !to_search.empty();) {
    const Part part = to_search.front();
    to_search.pop_front();
    const auto tied = tied_outside(model, part.name);
    if (with_ties(model, part, tied, to_search, &parts).bytes <= limit) {
      found = part;
    } else {
      const std::vector<Part> inside = divided(model, part);
      to_search.insert(to_search.begin(), inside.begin(), inside.end());
    }
  }
  if (!found) return std::nullopt;

  const std::string& name = found->name;
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const auto around = find_part(parts, name.substr(0, dot));
    if (around != parts.end()) replace_part(parts, around, parts_of_module(*around));
  }
  parts.erase(find_part(parts, name));
  return found;
}

}  // namespace accelerant::paging
