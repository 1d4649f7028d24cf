// Weights from files of Python's torch.save, and from modules of torch::save and TorchScript.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "core/texts.h"
#include "format/plain_tensor.h"
#include "format/torch_archive.h"
#include "store/weight_file.h"

namespace accelerant::checkpoint {
namespace {

using format::PlainItem;
using format::PlainTensor;
using format::PlainValue;
using nlohmann::json;

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
    return counted(bytes->bytes.size(), "byte");
  }
  if (const auto* real = std::get_if<double>(&value.content())) {
    if (std::isfinite(*real)) return *real;
    return std::isnan(*real) ? "NaN" : *real > 0 ? "Infinity" : "-Infinity";  // JSON lacks these
  }
  return nullptr;
}

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

class TorchWeights final : public WeightFile {
 public:
  // From Python's torch.save: a state dict, or anything else.
  static std::unique_ptr<WeightFile> of_python(const std::string& path) {
    std::unique_ptr<TorchWeights> file(new TorchWeights(path));
    const PlainValue content = format::read_torch_archive(path);
    file->other_content_ = beside_tensors(content);
    if (file->is_weights()) {
      file->attributes_ = content.as_dict().attributes;
      file->add_state(content.as_dict());
    } else {
      file->add("", content);
    }
    return file;
  }

  // From C++'s torch::save, or from TorchScript: the tensors of a module and its submodules.
  static std::unique_ptr<WeightFile> of_module(const std::string& path) {
    std::unique_ptr<TorchWeights> file(new TorchWeights(path));
    format::PlainDict state;
    add_module(format::read_module_archive(path), "", state);
    file->add_state(state);
    return file;
  }

  const char* format() const override { return "torch"; }

  bool stores_aliases() const override { return true; }

  void read(const WeightTensor& tensor, std::uint64_t offset,
            std::span<std::byte> target) const override {
    format::read_in_rows(contents_[tensor.number], offset, target);
  }

  void check() const override {
    for (const PlainTensor& tensor : contents_) tensor.storage->bytes();
  }

 private:
  using WeightFile::WeightFile;

  static void add_module(const PlainValue& module, const std::string& prefix,
                         format::PlainDict& state) {
    if (module.kind() == PlainValue::Kind::tensor) state.items.push_back({prefix, module});
    // Other attributes, such as whether it was training, are not weights.
    if (module.kind() != PlainValue::Kind::dict) return;
    for (const PlainItem& item : module.as_dict().items) {
      if (item.key.kind() == PlainValue::Kind::string) {
        add_module(item.value, below(prefix, item.key.as_string()), state);
      }
    }
  }

  // What is not part of a state dict; empty if nothing.
  static std::string beside_tensors(const PlainValue& content) {
    const auto text = [](const PlainValue& value, const std::string& where) {
      return "a Python " + std::string(format::name_of(value.kind())) + where;
    };
    if (content.kind() != PlainValue::Kind::dict) return text(content, "");
    for (const PlainItem& item : content.as_dict().items) {
      if (item.key.kind() != PlainValue::Kind::string) return text(item.key, " as a key");
      if (item.value.kind() != PlainValue::Kind::tensor) {
        return text(item.value, " under the name '" + item.key.as_string() + "'");
      }
    }
    return "";
  }

  void add_tensor(const std::string& name, const PlainTensor& tensor) {
    const std::uint64_t bytes = format::bytes_in_rows(tensor);
    tensors_.push_back({.name = name,
                        .dtype = tensor.dtype,
                        .type = format::dtype_from_name(tensor.dtype),
                        .shape = tensor.shape,
                        .bytes = bytes,
                        .held_bytes = std::min(bytes, tensor.storage->size()),
                        .number = contents_.size()});
    if (storages_.insert(tensor.storage.get()).second) held_bytes_ += tensor.storage->size();
    contents_.push_back(tensor);
  }

  // Names of the same tensor become aliases of the alphabetically first name, as in Python's
  // safetensors.
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

  // Adds everything below `value` by its path: "param_groups.0.lr".
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
  std::set<const format::PlainStorage*> storages_;
};

}  // namespace

std::unique_ptr<WeightFile> open_torch_file(const std::string& path) {
  const bool is_module = format::kind_of_archive(path) == format::ArchiveKind::torchscript_or_cpp;
  return is_module ? TorchWeights::of_module(path) : TorchWeights::of_python(path);
}

}  // namespace accelerant::checkpoint
