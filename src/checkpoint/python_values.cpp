#include "checkpoint/python_values.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "accelerant/core/error.h"
#include "checkpoint/tensor_copy.h"
#include "tensor/tensor_dtype.h"

namespace accelerant::checkpoint {
namespace {

using format::PlainValue;
using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

json number_as_json(double number) {
  if (std::isfinite(number)) return number;
  if (std::isnan(number)) return "nan";
  return number > 0 ? "inf" : "-inf";
}

class TreeReader {
 public:
  TreeReader(const std::string& where, NamedState* tree) : where_(where), tree_(tree) {}

  // A tensor that is moved to the tensors leaves nothing in the tree; `is_tensor` becomes true
  // then.
  json read(const PlainValue& value, const std::string& path, bool& is_tensor) {
    using Kind = PlainValue::Kind;
    switch (value.kind()) {
      case Kind::none:
        return nullptr;
      case Kind::boolean:
        return value.as_bool();
      case Kind::integer:
        return value.as_int();
      case Kind::real:
        return number_as_json(value.as_real());
      case Kind::string:
        return value.as_string();
      case Kind::list:
        return read_list(value.as_list(), path);
      case Kind::tuple:
        return read_list(value.as_tuple().items, path);
      case Kind::set:
        return read_list(std::get<format::PlainSet>(value.content()).items, path);
      case Kind::dict:
        return read_dict(value.as_dict(), path);
      case Kind::dtype:
        return std::get<format::PlainDtype>(value.content()).name;
      case Kind::device:
        return std::get<format::PlainDevice>(value.content()).name;
      case Kind::tensor:
        return read_tensor(value.as_tensor(), path, is_tensor);
      case Kind::bytes:
        break;
    }
    refuse(path, "bytes");
  }

 private:
  json read_list(const std::vector<PlainValue>& items, const std::string& path) {
    json list = json::array();
    for (std::size_t i = 0; i < items.size(); ++i) {
      bool is_tensor = false;
      list.push_back(read(items[i], below(path, std::to_string(i)), is_tensor));
    }
    return list;
  }

  json read_dict(const format::PlainDict& items, const std::string& path) {
    json dict = json::object();
    for (const format::PlainItem& item : items.items) {
      const std::string key = key_of(item.key, path);
      bool is_tensor = false;
      json value = read(item.value, below(path, key), is_tensor);
      if (is_tensor) continue;
      if (!dict.emplace(key, std::move(value)).second)
        refuse(path, "the key " + key + " more than once");
    }
    return dict;
  }

  json read_tensor(const format::PlainTensor& tensor, const std::string& path, bool& is_tensor) {
    const at::Tensor view = view_of(tensor, where_ + ", " + path);
    if (tree_ == nullptr) {
      if (view.numel() != 1 || view.is_complex()) refuse(path, "a tensor");
      return number_as_json(view.item().toDouble());
    }
    is_tensor = true;
    if (tree_->tensors.contains(path)) refuse(path, "two tensors");
    tree_->tensors.insert(path, view);
    return nullptr;
  }

  std::string key_of(const PlainValue& key, const std::string& path) const {
    if (key.kind() == PlainValue::Kind::string) return key.as_string();
    if (key.kind() == PlainValue::Kind::integer) return std::to_string(key.as_int());
    refuse(path, "a key of type " + std::string(format::name_of(key.kind())));
  }

  static std::string below(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  [[noreturn]] void refuse(const std::string& path, const std::string& got) const {
    throw Error(ErrorDetails{
        .problem = where_ + " has something unexpected" + (path.empty() ? "" : " at " + path),
        .expected = "numbers, strings, lists, and dicts with strings or integers as keys",
        .got = got});
  }

  const std::string& where_;
  NamedState* tree_;  // null: tensors become numbers
};

}  // namespace

at::Tensor view_of(const format::PlainTensor& tensor, const std::string& where, Expanded expanded) {
  const auto type = archive_type(tensor.dtype);
  if (!type) {
    throw Error(
        ErrorDetails{.problem = where + " has a tensor of a type that torch does not support",
                     .got = tensor.dtype});
  }
  const auto options = at::TensorOptions().dtype(*type);
  if (tensor.numel() == 0) return at::empty_strided(tensor.shape, tensor.strides, options);
  if (expanded == Expanded::refuse) format::refuse_expanded(tensor, where, "");
  const auto offset = static_cast<std::size_t>(tensor.storage_offset) * c10::elementSize(*type);
  // from_blob takes a non-const pointer; the header forbids writing to the tensor.
  auto* const begin = const_cast<std::byte*>(tensor.storage->bytes().data()) + offset;
  const at::Tensor view = at::from_blob(
      begin, tensor.shape, tensor.strides, [storage = tensor.storage](void*) {}, options);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(begin) % c10::elementSize(*type) == 0;
  if (is_aligned) return view;
  // Files written by other programs may not align their data.
  const at::Tensor copy = new_tensor(tensor.shape, *type, where);
  format::read_in_rows(tensor, 0,
                       {static_cast<std::byte*>(copy.mutable_data_ptr()), copy.nbytes()});
  return copy;
}

void require_plain(const at::Tensor& tensor, const std::string& where) {
  std::string got;
  if (!tensor.defined() || tensor.is_meta()) {
    got = "a tensor without data";
  } else if (tensor.layout() != at::kStrided) {
    got = "a tensor with the layout " + c10::str(tensor.layout());
  } else if (!archive_type_name(tensor.scalar_type())) {
    got = std::string("a tensor of type ") + c10::toString(tensor.scalar_type());
  }
  if (!got.empty()) {
    throw Error(
        ErrorDetails{.problem = where + " cannot be saved",
                     .expected = "a dense tensor of a type that Python's torch.save supports",
                     .got = got});
  }
}

format::PlainTensor plain_tensor(const at::Tensor& tensor, const std::string& where,
                                 std::optional<c10::ScalarType> dtype) {
  require_plain(tensor, where);
  const c10::ScalarType type = dtype.value_or(tensor.scalar_type());
  const auto storage = std::make_shared<format::PlainStorage>(
      static_cast<uint64_t>(tensor.numel()) * c10::elementSize(type),
      [source = tensor.detach(), type](format::ByteSink& sink) {
        for_each_piece(source.to(type), [&](auto bytes) { sink.write(bytes); });
      });
  return format::PlainTensor::contiguous(archive_type_name(type).value(), tensor.sizes().vec(),
                                         storage);
}

json json_of(const PlainValue& value, const std::string& where) {
  bool is_tensor = false;
  return TreeReader(where, nullptr).read(value, "", is_tensor);
}

PlainValue plain_value(const json& value) {
  switch (value.type()) {
    case json::value_t::boolean:
      return value.get<bool>();
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return value.get<int64_t>();
    case json::value_t::number_float:
      return value.get<double>();
    case json::value_t::string:
      if (value == "inf") return kInfinity;
      if (value == "-inf") return -kInfinity;
      if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
      return value.get<std::string>();
    case json::value_t::array: {
      format::PlainList list;
      for (const json& item : value) list.push_back(plain_value(item));
      return list;
    }
    case json::value_t::object: {
      format::PlainDict dict;
      for (const auto& item : value.items()) dict.set(item.key(), plain_value(item.value()));
      return dict;
    }
    default:
      return {};
  }
}

NamedState tree_of(const PlainValue& value, const std::string& where) {
  NamedState tree;
  bool is_tensor = false;
  tree.values = TreeReader(where, &tree).read(value, "", is_tensor);
  return tree;
}

}  // namespace accelerant::checkpoint
