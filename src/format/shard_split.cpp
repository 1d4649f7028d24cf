#include "format/shard_split.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "accelerant/core/error.h"
#include "core/texts.h"
#include "format/safetensors_header.h"

namespace accelerant::format {
namespace {

struct Unit {
  std::string_view name;  // in lower case
  double bytes;
};

constexpr std::array<Unit, 8> units = {{{"kb", 1e3},
                                        {"mb", 1e6},
                                        {"gb", 1e9},
                                        {"tb", 1e12},
                                        {"kib", 0x1p10},
                                        {"mib", 0x1p20},
                                        {"gib", 0x1p30},
                                        {"tib", 0x1p40}}};

[[noreturn]] void refuse_size(std::string_view text) {
  throw Error(ErrorDetails{.problem = "not a size in bytes",
                           .expected = "a number and one of KB, MB, GB, TB, KiB, MiB, GiB and TiB",
                           .got = quoted(text),
                           .hint = "for example '5GB'"});
}

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view spaces = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(spaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(spaces) - begin + 1);
}

}  // namespace

std::uint64_t parse_byte_size(std::string_view text) {
  const std::string_view trimmed = without_spaces(text);
  const std::string lower = lower_case(trimmed);
  const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& candidate) {
    return lower.ends_with(candidate.name);
  });
  if (unit == units.end()) refuse_size(text);
  const std::string_view number =
      without_spaces(trimmed.substr(0, trimmed.size() - unit->name.size()));
  // from_chars would also accept negative numbers, and "inf" and "nan", which begin with letters.
  const bool has_digits = !number.empty() && (number.front() == '.' ||
                                              (number.front() >= '0' && number.front() <= '9'));
  double value = 0;
  const char* const end = number.data() + number.size();
  const auto result = std::from_chars(number.data(), end, value);
  if (!has_digits || result.ec != std::errc() || result.ptr != end) refuse_size(text);
  const double bytes = std::floor(value * unit->bytes);
  if (bytes >= 0x1p64) refuse_size(text);
  return static_cast<std::uint64_t>(bytes);
}

std::string ShardNaming::file(std::uint64_t number, std::uint64_t count) const {
  if (count == 1) return stem + extension;
  std::array<char, 64> suffix{};
  std::snprintf(suffix.data(), suffix.size(), "-%05llu-of-%05llu",
                static_cast<unsigned long long>(number), static_cast<unsigned long long>(count));
  return stem + suffix.data() + extension;
}

ShardPlan split_into_shards(std::span<const TensorToPlace> tensors, std::uint64_t max_bytes,
                            const ShardNaming& naming) {
  struct Group {
    std::size_t first;  // the tensor whose bytes are counted
    std::vector<std::size_t> others = {};
  };
  ShardPlan plan;
  std::vector<Group> groups;  // ordered by first tensor
  std::unordered_map<std::uint64_t, std::size_t> group_of_storage;
  std::unordered_map<std::string_view, std::size_t> shard_of;
  std::vector<const TensorToPlace*> in_current;
  std::uint64_t current_size = 0;

  const auto place = [&](Shard& shard, std::size_t number, const TensorToPlace& tensor) {
    if (!shard_of.emplace(tensor.name, number).second) {
      throw Error("tensor " + quoted(tensor.name) + ": the name occurs twice");
    }
    shard.tensors.push_back(tensor.name);
  };
  const auto close_current = [&] {
    Shard& shard = plan.shards.emplace_back();
    for (const TensorToPlace* const tensor : in_current)
      place(shard, plan.shards.size() - 1, *tensor);
    in_current.clear();
    current_size = 0;
  };

  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorToPlace& tensor = tensors[i];
    if (tensor.storage) {
      const auto [group, is_new] = group_of_storage.emplace(*tensor.storage, groups.size());
      if (!is_new) {
        groups[group->second].others.push_back(i);
        continue;
      }
      groups.push_back({.first = i});
    }
    if (__builtin_add_overflow(plan.total_size, tensor.bytes, &plan.total_size)) {
      throw Error("tensor " + quoted(tensor.name) + ": all tensors together are too large");
    }
    if (tensor.bytes > max_bytes) {
      Shard& own = plan.shards.emplace_back();
      place(own, plan.shards.size() - 1, tensor);
      continue;
    }
    if (tensor.bytes > max_bytes - current_size) close_current();
    in_current.push_back(&tensor);
    current_size += tensor.bytes;
  }
  if (!in_current.empty()) close_current();

  for (const Group& group : groups) {
    const std::size_t number = shard_of.at(tensors[group.first].name);
    for (const std::size_t other : group.others) place(plan.shards[number], number, tensors[other]);
  }
  for (std::size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].file = naming.file(i + 1, plan.shards.size());
  }
  return plan;
}

}  // namespace accelerant::format
