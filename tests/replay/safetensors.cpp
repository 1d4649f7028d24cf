// Reads and writes safetensors files, and splits models over several of them.
//
// Input: {"path": "file"}
// Output: {"metadata": {...}, "tensors": [{"name": ..., "dtype": "F32", "shape": [...],
//          "offsets": [begin, end], "xxh3": "hex of the tensor's bytes"} ...]}, by name
//
// Other inputs, one per document:
//   {"slice": {"path": ..., "name": ..., "ranges": [[begin, end] ...]}} -> {"shape": [...], "hex": ...}
//   {"write": {"path": ..., "tensors": [{"name", "dtype", "shape", "hex"}], "metadata": {...} or null,
//              "piece": bytes to write at a time, 0 for all}} -> {}
//   {"byte_size": "5GB"} -> {"bytes": ...}
//   {"split": {"tensors": [[name, bytes, storage or null] ...], "max_bytes": ...}}
//      -> {"files": [[file, [names]] ...], "total_size": ..., "index": text of the index}
//   {"shard_name": "..."} -> {}
//   {"documents": [...]} -> {"results": [one for each]}
// An Error gives {"error": message}.
#define XXH_INLINE_ALL
#include <accelerant/format/safetensors.h>
#include <format/shard_index.h>
#include <format/shard_split.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using nlohmann::json;
namespace format = accelerant::format;

std::string hex_of(std::span<const std::byte> bytes) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    const auto value = static_cast<unsigned>(byte);
    text += {digits[value >> 4], digits[value & 15]};
  }
  return text;
}

std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string xxh3_of(std::span<const std::byte> bytes) {
  char text[17] = {};
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return text;
}

json read_file(const std::string& path) {
  const auto file = format::SafetensorsFile::open(path);
  std::vector<format::TensorInfo> tensors = file.tensors();
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  json list = json::array();
  for (const format::TensorInfo& tensor : tensors) {
    std::vector<std::byte> copy(tensor.bytes());
    file.read(tensor.name, copy);
    const auto view = file.view(tensor.name);
    if (!std::equal(copy.begin(), copy.end(), view.begin(), view.end())) {
      throw BadDocument("a view and a copy of " + tensor.name + " differ");
    }
    list.push_back({{"name", tensor.name},
                    {"dtype", format::dtype_name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"offsets", {tensor.begin, tensor.end}},
                    {"xxh3", xxh3_of(view)}});
  }
  return {{"metadata", file.metadata()}, {"tensors", list}};
}

json read_slice(const json& document) {
  const auto file = format::SafetensorsFile::open(document.at("path").get<std::string>(),
                                                  {.access = format::FileAccess::read});
  const std::string name = document.at("name").get<std::string>();
  std::vector<format::DimRange> ranges;
  for (const json& range : document.at("ranges")) {
    ranges.push_back({range.at(0).get<int64_t>(), range.at(1).get<int64_t>()});
  }
  std::vector<std::byte> target(file.slice_bytes(name, ranges));
  file.read_slice(name, ranges, target);
  return {{"shape", file.slice_shape(name, ranges)}, {"hex", hex_of(target)}};
}

// Unlike AtomicFile it does not wait for the disk, which would be slow for thousands of files.
class PlainFile final : public format::ByteSink {
 public:
  explicit PlainFile(const std::string& path) : file_(path, std::ios::binary) {}
  void write(std::span<const std::byte> bytes) override {
    file_.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  }

 private:
  std::ofstream file_;
};

json write_file(const json& document) {
  const std::size_t piece = document.value("piece", std::size_t{0});
  std::vector<std::vector<std::byte>> contents;
  std::vector<format::TensorToWrite> tensors;
  contents.reserve(document.at("tensors").size());
  for (const json& entry : document.at("tensors")) {
    const auto dtype = format::dtype_from_name(entry.at("dtype").get<std::string>());
    if (!dtype) throw BadDocument("no dtype " + entry.at("dtype").dump());
    const std::vector<std::byte>& content = contents.emplace_back(bytes_of(entry.at("hex")));
    format::TensorToWrite tensor{.name = entry.at("name").get<std::string>(),
                                 .dtype = *dtype,
                                 .shape = entry.at("shape").get<std::vector<int64_t>>()};
    if (piece == 0) {
      tensor.data = content;
    } else {
      tensor.produce = [&content, piece](format::ByteSink& sink) {
        for (std::span<const std::byte> left = content; !left.empty();) {
          const std::size_t size = std::min(piece, left.size());
          sink.write(left.first(size));
          left = left.subspan(size);
        }
      };
    }
    tensors.push_back(std::move(tensor));
  }
  std::optional<format::Metadata> metadata;
  if (!document.at("metadata").is_null())
    metadata = document.at("metadata").get<format::Metadata>();
  PlainFile file(document.at("path").get<std::string>());
  format::SafetensorsWriter(std::move(tensors), metadata).write(file);
  return json::object();
}

json split(const json& document) {
  std::vector<format::TensorToPlace> tensors;
  for (const json& entry : document.at("tensors")) {
    auto& tensor = tensors.emplace_back();
    tensor.name = entry.at(0).get<std::string>();
    tensor.bytes = entry.at(1).get<uint64_t>();
    if (!entry.at(2).is_null()) tensor.storage = entry.at(2).get<uint64_t>();
  }
  const auto plan = format::split_into_shards(tensors, document.at("max_bytes").get<uint64_t>());
  json files = json::array();
  for (const format::Shard& shard : plan.shards) {
    files.push_back(json::array({shard.file, shard.tensors}));
  }
  return {{"files", files},
          {"total_size", plan.total_size},
          {"index", format::print_shard_index(format::index_of(plan))}};
}

}  // namespace

json replay_safetensors(const json& document) {
  if (document.contains("documents")) {
    json results = json::array();
    for (const json& each : document.at("documents")) results.push_back(replay_safetensors(each));
    return {{"results", results}};
  }
  return result_or_error([&]() -> json {
    if (document.contains("slice")) return read_slice(document.at("slice"));
    if (document.contains("write")) return write_file(document.at("write"));
    if (document.contains("split")) return split(document.at("split"));
    if (document.contains("byte_size")) {
      return {{"bytes", format::parse_byte_size(document.at("byte_size").get<std::string>())}};
    }
    if (document.contains("shard_name")) {
      format::check_shard_name(document.at("shard_name").get<std::string>());
      return json::object();
    }
    return read_file(document.at("path").get<std::string>());
  });
}

}  // namespace replay
