#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ostream>
#include <tuple>

#include "accelerant/core/error.h"
#include "accelerant/paging/device_map.h"

namespace accelerant {
namespace {

// What an index means. Also without a GPU, so that maps for other machines can be made.
c10::DeviceType type_of_gpus() {
  static const c10::DeviceType type = [] {
    const std::optional<c10::DeviceType> found = at::getAccelerator();
    return found && *found != c10::DeviceType::MPS ? *found : c10::DeviceType::CUDA;
  }();
  return type;
}

c10::Device device_of(std::string_view name) {
  try {
    return c10::Device(std::string(name));
  } catch (const c10::Error&) {
    throw Error(ErrorDetails{
        .problem = "not a place for a part of a model",
        .expected = "the index of a GPU (a number), 'cpu', 'disk' or a name such as 'cuda:1'",
        .got = "'" + std::string(name) + "'"});
  }
}

struct SizeUnit {
  std::string_view name;  // in upper case
  double bytes;
};

constexpr std::array<SizeUnit, 8> size_units = {{{"GIB", 0x1p30},
                                                 {"MIB", 0x1p20},
                                                 {"KIB", 0x1p10},
                                                 {"TIB", 0x1p40},
                                                 {"GB", 1e9},
                                                 {"MB", 1e6},
                                                 {"KB", 1e3},
                                                 {"TB", 1e12}}};

[[noreturn]] void refuse_memory_size(std::string_view text) {
  throw Error("`size` " + std::string(text) +
              " is not in a valid format. Use an integer for bytes, or a string with an unit "
              "(like '5.0GB').");
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view spaces = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(spaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(spaces) - begin + 1);
}

// As Python's float() reads it, without infinity, nan and underscores.
std::optional<double> plain_number(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || !(text.front() == '.' || (text.front() >= '0' && text.front() <= '9'))) {
    return std::nullopt;
  }
  double number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

int64_t bytes_of_text(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  const auto unit = std::ranges::find_if(
      size_units, [&](const SizeUnit& candidate) { return upper.ends_with(candidate.name); });
  if (unit == size_units.end()) refuse_memory_size(text);
  const auto number = plain_number(text.substr(0, text.size() - unit->name.size()));
  if (!number || *number * unit->bytes >= 0x1p63) refuse_memory_size(text);
  const auto size = static_cast<int64_t>(*number * unit->bytes);
  const bool is_bits = unit->name.size() == 2 && text.ends_with('b');
  return is_bits ? size / 8 : size;
}

}  // namespace

// --- Placement -----------------------------------------------------------------------------------

Placement::Placement(std::string_view name)
    : device_(name == "disk" ? c10::Device(c10::DeviceType::Meta) : device_of(name)),
      is_disk_(name == "disk") {}

Placement Placement::of_gpu(int64_t index) {
  if (index < 0 || index > 127) {
    throw Error(ErrorDetails{.problem = "not the index of a GPU",
                             .expected = "a number from 0 to 127",
                             .got = std::to_string(index)});
  }
  return c10::Device(type_of_gpus(), static_cast<c10::DeviceIndex>(index));
}

std::optional<int> Placement::gpu() const {
  if (is_disk_ || device_.type() != type_of_gpus() || !device_.has_index()) return std::nullopt;
  return device_.index();
}

std::optional<c10::Device> Placement::device() const {
  return is_disk_ ? std::nullopt : std::optional(device_);
}

std::string Placement::text() const {
  if (is_disk_) return "disk";
  if (const auto index = gpu()) return std::to_string(*index);
  return device_.str();
}

int Placement::rank() const {
  if (is_disk_) return 3;
  switch (device_.type()) {
    case c10::DeviceType::MPS:
      return 1;
    case c10::DeviceType::CPU:
      return 2;
    case c10::DeviceType::Meta:
      return 4;
    default:
      return 0;
  }
}

bool Placement::operator<(const Placement& other) const {
  const auto key = [](const Placement& place) {
    return std::tuple(place.rank(), static_cast<int>(place.device_.type()),
                      static_cast<int>(place.device_.index()));
  };
  return key(*this) < key(other);
}

std::ostream& operator<<(std::ostream& stream, const Placement& placement) {
  return stream << placement.text();
}

// --- MemorySize ----------------------------------------------------------------------------------

MemorySize::MemorySize(std::string_view text) : bytes_(bytes_of_text(text)) {}

int64_t MemorySize::checked(int64_t bytes) {
  if (bytes < 0) refuse_memory_size(std::to_string(bytes));
  return bytes;
}

}  // namespace accelerant
