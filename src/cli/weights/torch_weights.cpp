// Files of Python's torch.save, as weights.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "accelerant/format/torch_archive.h"
#include "cli/weights/weight_files.h"
#include "format/torch_dtype.h"

namespace accelerant::cli {
namespace {

using format::PlainItem;
using format::PlainTensor;
using format::PlainValue;
using nlohmann::json;

constexpr std::size_t kPiece = 4 << 20;

bool is_nested(const PlainValue& value) {
  switch (value.kind()) {
    case PlainValue::Kind::list:
    case PlainValue::Kind::tuple:
    case PlainValue::Kind::set:
    case PlainValue::Kind::dict:
    case PlainValue::Kind::tensor:
      return true;
    default:
      return false;
  }
}

json to_json(const PlainValue& value) {
  if (const auto* flag = std::get_if<bool>(&value.content())) return *flag;
  if (const auto* integer = std::get_if<int64_t>(&value.content())) return *integer;
  if (const auto* text = std::get_if<std::string>(&value.content())) return *text;
  if (const auto* dtype = std::get_if<format::PlainDtype>(&value.content())) return dtype->name;
  if (const auto* device = std::get_if<format::PlainDevice>(&value.content())) return device->name;
  if (const auto* bytes = std::get_if<format::PlainBytes>(&value.content())) {
    return std::to_string(bytes->bytes.size()) + " bytes";
  }
  if (const auto* real = std::get_if<double>(&value.content())) {
    if (std::isfinite(*real)) return *real;
    return std::isnan(*real) ? "NaN" : *real > 0 ? "Infinity" : "-Infinity";  // JSON has none
  }
  return nullptr;
}

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

class TorchWeights final : public WeightFile {
 public:
  explicit TorchWeights(const std::string& path) : WeightFile(path) {
    const PlainValue content = format::read_torch_archive(path);
    is_weights_ = is_state_dict(content);
    if (is_weights_) {
      attributes_ = content.as_dict().attributes;
      add_state(content.as_dict());
    } else {
      add("", content);
    }
  }

  const char* format() const override { return "torch"; }

  void for_each_piece(const WeightTensor& tensor, const UsePiece& use) const override {
    std::vector<std::byte> buffer;
    const auto bytes = view(tensor, buffer);
    for (std::size_t offset = 0; offset < bytes.size(); offset += kPiece) {
      use(bytes.subspan(offset, std::min(kPiece, bytes.size() - offset)));
    }
  }

  std::span<const std::byte> view(const WeightTensor& tensor,
                                  std::vector<std::byte>& buffer) const override {
    return format::row_major_bytes(contents_[tensor.number], buffer);
  }

  void check() const override {
    for (const PlainTensor& tensor : contents_) tensor.storage->bytes();
  }

 private:
  static bool is_state_dict(const PlainValue& content) {
    return content.kind() == PlainValue::Kind::dict &&
           std::ranges::all_of(content.as_dict().items, [](const PlainItem& item) {
             return item.key.kind() == PlainValue::Kind::string &&
                    item.value.kind() == PlainValue::Kind::tensor;
           });
  }

  void add_tensor(const std::string& name, const PlainTensor& tensor) {
    const auto element = static_cast<std::uint64_t>(format::find_dtype(tensor.dtype)->size);
    tensors_.push_back({.name = name,
                        .dtype = tensor.dtype,
                        .type = format::dtype_from_name(tensor.dtype),
                        .shape = tensor.shape,
                        .bytes = static_cast<std::uint64_t>(tensor.numel()) * element,
                        .number = contents_.size()});
    contents_.push_back(tensor);
  }

  // Names of the same tensor become aliases of the alphabetically first, as in Python's safetensors.
  void add_state(const format::PlainDict& state) {
    using View =
        std::tuple<const void*, int64_t, std::vector<int64_t>, std::vector<int64_t>, std::string>;
    const auto view_of = [](const PlainTensor& tensor) {
      return View(tensor.storage.get(), tensor.storage_offset, tensor.shape, tensor.strides,
                  tensor.dtype);
    };
    std::map<View, std::string> kept;
    for (const PlainItem& item : state.items) {
      const auto [found, is_new] =
          kept.emplace(view_of(item.value.as_tensor()), item.key.as_string());
      if (!is_new) found->second = std::min(found->second, item.key.as_string());
    }
    for (const PlainItem& item : state.items) {
      const PlainTensor& tensor = item.value.as_tensor();
      const std::string& name = item.key.as_string();
      const std::string& first = kept.at(view_of(tensor));
      if (first == name || tensor.numel() == 0) {
        add_tensor(name, tensor);
      } else {
        aliases_.emplace(name, first);
      }
    }
  }

  // Everything below `value`, by its path: "param_groups.0.lr".
  void add(const std::string& path, const PlainValue& value) {
    const auto add_items = [&](const std::vector<PlainValue>& items) {
      if (std::ranges::none_of(items, is_nested)) {
        json list = json::array();
        for (const PlainValue& item : items) list.push_back(to_json(item));
        values_.emplace_back(path, text_of(list));
        return;
      }
      for (std::size_t i = 0; i < items.size(); ++i) add(below(path, std::to_string(i)), items[i]);
    };
    if (const auto* tensor = std::get_if<PlainTensor>(&value.content())) {
      add_tensor(path, *tensor);
    } else if (const auto* list = std::get_if<format::PlainList>(&value.content())) {
      add_items(*list);
    } else if (const auto* tuple = std::get_if<format::PlainTuple>(&value.content())) {
      add_items(tuple->items);
    } else if (const auto* set = std::get_if<format::PlainSet>(&value.content())) {
      add_items(set->items);
    } else if (const auto* dict = std::get_if<format::PlainDict>(&value.content())) {
      if (dict->items.empty()) values_.emplace_back(path, "{}");
      for (const PlainItem& item : dict->items) add(below(path, key_text(item.key)), item.value);
    } else {
      values_.emplace_back(path, text_of(to_json(value)));
    }
  }

  static std::string key_text(const PlainValue& key) {
    return key.kind() == PlainValue::Kind::string ? key.as_string() : text_of(to_json(key));
  }

  static std::string below(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  std::vector<PlainTensor> contents_;
};

}  // namespace

std::unique_ptr<WeightFile> open_torch_file(const std::string& path) {
  return std::make_unique<TorchWeights>(path);
}

}  // namespace accelerant::cli
