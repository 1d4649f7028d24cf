#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/paging/device_map.h"
#include "paging/device_map/allocation.h"
#include "paging/device_map/module_sizes.h"
#include "paging/device_map/module_tree.h"

namespace accelerant {
namespace {

using paging::Part;

std::string bytes_text(double bytes) {
  return std::to_string(static_cast<int64_t>(bytes)) + " bytes";
}

std::string names_of(const std::vector<Part>& parts) {
  std::string text;
  for (const Part& part : parts) text += (text.empty() ? "" : ", ") + part.name;
  return text;
}

// One device while it is filled.
struct Target {
  Placement place;
  double limit;        // infinite for the disk
  bool keeps_room;     // for the largest layer that lives further on, which comes here to be used
  double used = 0;     // bytes
  double buffers = 0;  // bytes of the buffers among them
};

std::vector<Target> targets_of(const MaxMemory& limits) {
  std::vector<Target> targets;
  for (const auto& [place, limit] : limits) {
    const double bytes = place.is_disk() ? std::numeric_limits<double>::infinity()
                                         : static_cast<double>(limit.bytes());
    targets.push_back({.place = place, .limit = bytes, .keeps_room = false});
  }
  if (!limits.contains("disk")) {
    targets.push_back(
        {.place = "disk", .limit = std::numeric_limits<double>::infinity(), .keeps_room = false});
  }
  const auto has_mps = std::ranges::find(targets, Placement("mps"), &Target::place);
  if (has_mps != targets.end()) {
    has_mps->keeps_room = true;
    return targets;
  }
  if (targets.front().place.gpu()) targets.front().keeps_room = true;
  for (Target& target : targets) target.keeps_room |= target.place.is_cpu();
  return targets;
}

// The algorithm of Accelerate's infer_auto_device_map, step by step, since its results are to be
// the same.
class Allocation {
 public:
  Allocation(const paging::ModuleTree& tree, const DeviceMapOptions& options)
      : options_(options),
        sizing_({.dtype = options.dtype, .special_dtypes = options.special_dtypes}),
        model_({.sizes = paging::size_table(tree, sizing_),
                .tied = paging::tied_groups(tree),
                .no_split = options.no_split_module_classes}),
        targets_(targets_of(get_max_memory(options.max_memory))) {
    const std::vector<Part> parts = paging::parts_of_model(tree);
    waiting_.assign(parts.begin(), parts.end());
    largest_ = paging::largest_layers(parts, model_.sizes, model_.no_split);
  }

  DeviceMap run() {
    while (!waiting_.empty()) {
      const Part part = waiting_.front();
      waiting_.pop_front();
      forget_layer(part.name);
      place(part);
    }
    say_what_was_left_empty();
    warn_about_buffers();
    return options_.clean_result ? clean_device_map(map_) : map_;
  }

 private:
  Target& target() { return targets_[current_]; }

  void say(const std::string& text) const {
    if (options_.verbose) log(LogLevel::info, "device map: " + text);
  }

  void measure_layers() {
    std::vector<Part> modules;
    std::ranges::copy_if(waiting_, std::back_inserter(modules),
                         [](const Part& part) { return part.module != nullptr; });
    largest_ = paging::largest_layers(modules, model_.sizes, model_.no_split);
  }

  // Layers that have got their place need no room kept for them.
  void forget_layer(const std::string& name) {
    std::erase_if(largest_.names, [&](const std::string& layer) {
      return layer == name || layer.starts_with(name + ".");
    });
    if (largest_.names.empty()) measure_layers();
  }

  void place(const Part& part) {
    const double bytes = model_.sizes.of(part.name);
    const auto tied = paging::tied_outside(model_, part.name);
    const paging::PartWithTies together = paging::with_ties(model_, part, tied, waiting_);
    const double reserved = target().keeps_room ? largest_.bytes : 0;
    const double room = target().limit - reserved;
    if (target().used + together.bytes <= room) return put(part, together);
    say(part.name + " (" + bytes_text(together.bytes) + ") does not fit on " +
        target().place.text() + ", which has " + bytes_text(room - target().used) + " left");
    if (!tied.empty() && target().used + bytes <= room && divide_owner(part, together.owners)) {
      return;
    }
    if (target().used + bytes >= room && divide(part)) return;
    if (target().used == 0 && options_.fallback_allocation && take_another(part, together.bytes)) {
      return;
    }
    if (target().used == 0) left_empty_.emplace_back(target().place, together.bytes + reserved);
    say("going on with the next device");
    target().used += reserved;
    ++current_;
    tried_.clear();
    waiting_.push_front(part);
  }

  void put(const Part& part, const paging::PartWithTies& together) {
    const std::string with = together.owners.empty() ? "" : " and " + names_of(together.owners);
    say(part.name + with + " (" + bytes_text(together.bytes) + ") on " + target().place.text());
    target().used += together.bytes;
    map_.set(part.name, target().place);
    for (const Part& owner : together.owners) {
      const auto found = std::ranges::find(waiting_, owner.name, &Part::name);
      if (found != waiting_.end()) waiting_.erase(found);
      map_.set(owner.name, target().place);
    }
    if (options_.offload_buffers || part.module == nullptr) return;
    ModuleSizeOptions buffers = sizing_;
    buffers.buffers_only = true;
    target().buffers += paging::size_table(*part.module, buffers).of("");
  }

  // Divides the first module with a tied parameter that can be divided.
  bool divide_owner(const Part& part, const std::vector<Part>& owners) {
    for (const Part& owner : owners) {
      const std::vector<Part> inside = paging::divided(model_, owner);
      if (inside.empty()) continue;
      say("dividing " + owner.name);
      const auto found = std::ranges::find(waiting_, owner.name, &Part::name);
      waiting_.insert(waiting_.erase(found), inside.begin(), inside.end());
      waiting_.push_front(part);
      measure_layers();
      return true;
    }
    return false;
  }

  bool divide(const Part& part) {
    const std::vector<Part> inside = paging::divided(model_, part);
    if (inside.empty()) return false;
    say("dividing " + part.name);
    waiting_.insert(waiting_.begin(), inside.begin(), inside.end());
    measure_layers();
    return true;
  }

  // Lets another part that should fit come before this one.
  bool take_another(const Part& part, double needed) {
    const double room = target().limit - std::max(largest_.bytes, needed);
    paging::Parts remaining = waiting_;
    const auto other = paging::take_fitting(model_, remaining, room);
    // One that was taken before did not fit after all, and would be taken for ever.
    if (!other || !tried_.insert(other->name).second) return false;
    say("trying " + other->name + " before");
    waiting_ = std::move(remaining);
    waiting_.push_front(part);
    waiting_.push_front(*other);
    return true;
  }

  void warn_about_buffers() const {
    if (options_.offload_buffers) return;
    double offloaded = 0;
    bool has_gpu = false;
    bool has_room = false;
    for (const Target& each : targets_) {
      if (each.place.is_cpu() || each.place.is_disk()) offloaded += each.buffers;
    }
    for (const Target& each : targets_) {
      if (each.place.is_cpu() || each.place.is_disk()) continue;
      has_gpu = true;
      has_room = has_room || each.limit >= offloaded + each.used;
    }
    if (offloaded == 0 || !has_gpu || has_room) return;
    log(LogLevel::warning,
        "Current model requires " + bytes_text(offloaded) +
            " of buffer for offloaded layers, which seems does not fit any GPU's remaining memory. "
            "If you are experiencing a OOM later, please consider using offload_buffers = true.");
  }

  void say_what_was_left_empty() const {
    if (left_empty_.empty()) return;
    std::string text =
        "Based on the current allocation process, no modules could be assigned to the following "
        "devices due to insufficient memory:";
    for (const auto& [place, needed] : left_empty_) {
      text += "\n  - " + place.text() + ": " + bytes_text(needed) + " required";
    }
    log(LogLevel::info, text);
  }

  DeviceMapOptions options_;
  ModuleSizeOptions sizing_;
  paging::AllocationModel model_;
  std::vector<Target> targets_;
  std::size_t current_ = 0;  // the target that is filled
  paging::Parts waiting_ = {};
  paging::Layers largest_ = {};       // among the parts that wait
  std::set<std::string> tried_ = {};  // parts taken before others on this target
  std::vector<std::pair<Placement, double>> left_empty_ = {};
  DeviceMap map_ = {};
};

}  // namespace

DeviceMap infer_auto_device_map(const ModelArgument& model, const DeviceMapOptions& options) {
  return Allocation(paging::tree_of(model.module()), options).run();
}

}  // namespace accelerant
