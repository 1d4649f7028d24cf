#include "accelerant/format/safetensors.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "accelerant/core/error.h"
#include "core/atomic_file.h"
#include "core/utf8.h"
#include "format/json_scanner.h"
#include "format/safetensors_header.h"

namespace accelerant::format {
namespace {

constexpr std::size_t header_alignment = 8;  // so that data begins aligned for every type

[[noreturn]] void refuse(const TensorToWrite& tensor, const std::string& problem,
                         std::string expected = {}, std::string got = {}, std::string hint = {}) {
  throw Error(ErrorDetails{.problem = "tensor " + quoted(tensor.name) + ": " + problem,
                           .expected = std::move(expected),
                           .got = std::move(got),
                           .hint = std::move(hint)});
}

void check_name(const TensorToWrite& tensor) {
  if (tensor.name == metadata_key) refuse(tensor, "the name is reserved");
  if (find_invalid_utf8(tensor.name)) refuse(tensor, "the name is not valid UTF-8");
}

// Checks a tensor and returns its size.
std::uint64_t checked_size(const TensorToWrite& tensor) {
  if (tensor.shape.size() > largest_rank) {
    refuse(tensor, "it has too many dimensions", "at most " + std::to_string(largest_rank),
           std::to_string(tensor.shape.size()));
  }
  SizeProblem problem{};
  const std::optional<std::uint64_t> bytes = byte_size(tensor.dtype, tensor.shape, &problem);
  if (!bytes) {
    const std::string dtype(dtype_name(tensor.dtype));
    switch (problem) {
      case SizeProblem::negative:
        refuse(tensor, "a dimension is negative");
      case SizeProblem::overflow:
        refuse(tensor, "its shape has too many elements of type " + dtype);
      case SizeProblem::misaligned:
        refuse(tensor, "its elements of type " + dtype + " do not fill whole bytes");
    }
  }
  if (tensor.produce) {
    if (!tensor.data.empty()) refuse(tensor, "it has both data and a produce function");
  } else if (tensor.data.size() != *bytes) {
    refuse(tensor, "the size of its data does not match its shape and type",
           std::to_string(*bytes) + " bytes", std::to_string(tensor.data.size()));
  }
  return *bytes;
}

void check_metadata(const Metadata& metadata) {
  for (const auto& [key, value] : metadata) {
    if (find_invalid_utf8(key) || find_invalid_utf8(value)) {
      throw Error("metadata " + quoted(key) + ": the text is not valid UTF-8");
    }
  }
}

void check_duplicates(const std::vector<TensorToWrite>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw Error("tensor " + quoted(*twice) + ": the name occurs twice");
}

void append_metadata(std::string& json, const Metadata& metadata) {
  append_json_string(json, metadata_key);
  json += ":{";
  for (const auto& [key, value] : metadata) {
    if (json.back() != '{') json += ',';
    append_json_string(json, key);
    json += ':';
    append_json_string(json, value);
  }
  json += '}';
}

void append_tensor(std::string& json, const TensorToWrite& tensor, std::uint64_t begin,
                   std::uint64_t end) {
  append_json_string(json, tensor.name);
  json += ":{\"dtype\":\"";
  json += dtype_name(tensor.dtype);
  json += "\",\"shape\":[";
  for (const std::int64_t size : tensor.shape) {
    if (json.back() != '[') json += ',';
    json += std::to_string(size);
  }
  json += "],\"data_offsets\":[" + std::to_string(begin) + ',' + std::to_string(end) + "]}";
}

// Counts the bytes passing through, and rejects any beyond the tensor's size.
class CheckedSink final : public ByteSink {
 public:
  CheckedSink(ByteSink& sink, const TensorToWrite& tensor, std::uint64_t size)
      : sink_(sink), tensor_(tensor), size_(size), left_(size) {}

  void write(std::span<const std::byte> bytes) override {
    if (bytes.size() > left_) {
      refuse(tensor_, "more bytes were produced than it has", std::to_string(size_),
             "at least " + std::to_string(size_ - left_ + bytes.size()));
    }
    left_ -= bytes.size();
    sink_.write(bytes);
  }

  void finish() const {
    if (left_ == 0) return;
    refuse(tensor_, "fewer bytes were produced than it has", std::to_string(size_),
           std::to_string(size_ - left_));
  }

 private:
  ByteSink& sink_;
  const TensorToWrite& tensor_;
  std::uint64_t size_;
  std::uint64_t left_;
};

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::vector<TensorToWrite> tensors,
                                     const std::optional<Metadata>& metadata)
    : tensors_(std::move(tensors)) {
  check_duplicates(tensors_);
  if (metadata) check_metadata(*metadata);
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });

  header_.assign(length_bytes, '\0');
  header_ += '{';
  if (metadata) append_metadata(header_, *metadata);
  sizes_.reserve(tensors_.size());
  std::uint64_t position = 0;
  for (const TensorToWrite& tensor : tensors_) {
    check_name(tensor);
    sizes_.push_back(checked_size(tensor));
    std::uint64_t end = 0;
    if (__builtin_add_overflow(position, sizes_.back(), &end)) {
      refuse(tensor, "all tensors together are too large for a file");
    }
    if (header_.back() != '{') header_ += ',';
    append_tensor(header_, tensor, position, end);
    position = end;
  }
  header_ += '}';
  const std::size_t odd = header_.size() % header_alignment;
  if (odd != 0) header_.append(header_alignment - odd, ' ');
  const std::uint64_t length = header_.size() - length_bytes;
  if (length > largest_header) {
    throw Error(ErrorDetails{.problem = "the header of the safetensors file would be too long",
                             .expected = "at most " + std::to_string(largest_header) + " bytes",
                             .got = std::to_string(length),
                             .hint = "split the tensors into several files"});
  }
  std::memcpy(header_.data(), &length, length_bytes);
  if (__builtin_add_overflow(position, header_.size(), &file_size_)) {
    throw Error("all tensors together are too large for a safetensors file");
  }
}

std::vector<TensorInfo> SafetensorsWriter::layout() const {
  std::vector<TensorInfo> infos;
  infos.reserve(tensors_.size());
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    infos.push_back({.name = tensors_[i].name,
                     .dtype = tensors_[i].dtype,
                     .shape = tensors_[i].shape,
                     .begin = position,
                     .end = position + sizes_[i]});
    position += sizes_[i];
  }
  return infos;
}

void SafetensorsWriter::write(ByteSink& sink) const {
  sink.write(std::as_bytes(std::span(header_)));
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorToWrite& tensor = tensors_[i];
    if (tensor.produce) {
      CheckedSink checked(sink, tensor, sizes_[i]);
      tensor.produce(checked);
      checked.finish();
    } else if (!tensor.data.empty()) {
      sink.write(tensor.data);
    }
  }
}

void save_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                      const std::optional<Metadata>& metadata) {
  const SafetensorsWriter writer(std::move(tensors), metadata);
  AtomicFile file(path);
  writer.write(file);
  file.commit();
}

}  // namespace accelerant::format
