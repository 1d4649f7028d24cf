#include "checkpoint/state_part.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <span>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors.h"
#include "checkpoint/shared_tensors.h"
#include "checkpoint/tensor_writer.h"
#include "core/files.h"
#include "core/texts.h"
#include "store/file_writer.h"
#include "tensor/tensor_dtype.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::size_t kMostJsonBytes = std::size_t{1} << 30;

// Reading and writing it recurses.
constexpr int kDeepestJson = 1000;

// Represents a number that JSON lacks: {"$number": "inf"}.
constexpr const char* kNumber = "$number";

nlohmann::json with_numbers_as_text(const nlohmann::json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    return {{kNumber, std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
  }
  if (!value.is_structured()) return value;
  nlohmann::json result = value;
  for (nlohmann::json& element : result) element = with_numbers_as_text(element);
  return result;
}

nlohmann::json with_numbers(nlohmann::json value) {
  if (value.is_object() && value.size() == 1 && value.contains(kNumber) &&
      value.at(kNumber).is_string()) {
    return std::strtod(value.at(kNumber).get_ref<const std::string&>().c_str(), nullptr);
  }
  if (value.is_structured()) {
    for (nlohmann::json& element : value) element = with_numbers(std::move(element));
  }
  return value;
}

std::string json_file(const std::string& name) { return name + ".json"; }
std::string tensor_file(const std::string& name) { return name + ".safetensors"; }

nlohmann::json read_json(const std::string& path) {
  const auto watch_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth <= kDeepestJson) return true;
    throw Error(ErrorDetails{.problem = path + " cannot be read",
                             .expected = "at most " + std::to_string(kDeepestJson) + " levels",
                             .got = "more"});
  };
  try {
    return with_numbers(nlohmann::json::parse(read_file(path, kMostJsonBytes), watch_depth));
  } catch (const nlohmann::json::exception& error) {
    throw Error(
        ErrorDetails{.problem = path + " cannot be read", .expected = "JSON", .got = error.what()});
  } catch (const std::bad_alloc&) {
    throw Error(ErrorDetails{.problem = path + " cannot be read",
                             .expected = "JSON that fits into the memory",
                             .got = counted(size_of_file(path).value_or(0), "byte")});
  }
}

// A view of the file itself, unless its bytes are not aligned for the type.
at::Tensor tensor_in(const std::shared_ptr<const format::SafetensorsFile>& file,
                     const format::TensorInfo& info) {
  const auto type = torch_dtype(info.dtype);
  if (!type) {
    throw Error(ErrorDetails{
        .problem = file->label() + " cannot be loaded",
        .expected = "types that torch supports",
        .got = "'" + info.name + "' of type " + std::string(format::dtype_name(info.dtype))});
  }
  const std::span<const std::byte> bytes = file->view(info.name);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  if (bytes.empty() || address % c10::elementSize(*type) != 0) {
    const at::Tensor copy = at::empty(info.shape, *type);
    if (!bytes.empty()) std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), info.shape, [file](void*) {}, *type);
}

StateDict read_tensors(const std::string& path) {
  const auto file =
      std::make_shared<const format::SafetensorsFile>(format::SafetensorsFile::open(path));
  StateDict tensors;
  for (const format::TensorInfo& info : file->tensors()) {
    tensors.insert(info.name, tensor_in(file, info));
  }
  for (const auto& [alias, kept] : file->metadata()) {
    if (!tensors.contains(alias) && tensors.contains(kept)) tensors.insert(alias, tensors[kept]);
  }
  return tensors;
}

}  // namespace

uint64_t tensor_bytes(const StatePart& part) {
  uint64_t bytes = 0;
  for (const auto& item : part.state.tensors) bytes += item.value().nbytes();
  return bytes;
}

void require_storable(const StatePart& part) {
  for (const auto& item : part.state.tensors) {
    require_storable(part.name + ": " + item.key(), item.value(), std::nullopt);
  }
}

void write_part(const StatePart& part, const CheckpointFolder& folder,
                std::map<std::string, FileRecord>& records) {
  const auto write = [&](const std::string& name, const auto& fill) {
    FileWriter file(folder.new_file(name));
    fill(file);
    records[name] = file.finish();
  };
  if (!part.state.tensors.is_empty()) {
    const DistinctTensors distinct = distinct_tensors(part.state.tensors);
    write(tensor_file(part.name), [&](format::ByteSink& sink) {
      write_safetensors(distinct.kept.keys(), distinct.kept, distinct.aliases, std::nullopt, sink);
    });
  }
  if (*part.state.values != nlohmann::json::object()) {
    const std::string text = with_numbers_as_text(*part.state.values).dump(1) + "\n";
    write(json_file(part.name),
          [&](format::ByteSink& sink) { sink.write(std::as_bytes(std::span(text))); });
  }
}

bool has_part(const Manifest& manifest, const std::string& name) {
  return manifest.files.contains(json_file(name)) || manifest.files.contains(tensor_file(name));
}

NamedState read_part(const std::string& folder, const Manifest& manifest, const std::string& name) {
  NamedState state;
  if (manifest.files.contains(json_file(name))) {
    state.values = read_json(join_path(folder, json_file(name)));
  }
  if (manifest.files.contains(tensor_file(name))) {
    state.tensors = read_tensors(join_path(folder, tensor_file(name)));
  }
  return state;
}

}  // namespace accelerant::checkpoint
