#include "format/shard_index.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <utility>

#include "accelerant/core/error.h"
#include "core/utf8.h"
#include "format/json_scanner.h"
#include "format/random_access_file.h"
#include "format/safetensors_header.h"

namespace accelerant::format {
namespace {

constexpr std::uint64_t largest_index = 100'000'000;  // bytes

using TextMap = std::map<std::string, std::string>;

void add(TextMap& map, std::string& key, std::string value, const JsonScanner& json) {
  if (!map.emplace(key, std::move(value)).second)
    json.fail("the key " + quoted(key) + " occurs twice");
}

class IndexParser {
 public:
  explicit IndexParser(std::string_view text) : text_(text), json_(text) {}

  ShardIndex parse() {
    bool has_metadata = false;
    bool has_map = false;
    std::string key;
    json_.begin_object();
    while (json_.next_key(key)) {
      if (key == "metadata") {
        if (std::exchange(has_metadata, true)) json_.fail("'metadata' occurs twice");
        if (!json_.null()) read_metadata();
      } else if (key == "weight_map") {
        if (std::exchange(has_map, true)) json_.fail("'weight_map' occurs twice");
        read_map();
      } else {
        json_.skip_value();
      }
    }
    json_.end();
    if (!has_map) json_.fail("'weight_map' is missing");
    return std::move(index_);
  }

 private:
  void read_metadata() {
    std::string key;
    json_.begin_object();
    while (json_.next_key(key)) {
      json_.skip_whitespace();
      const std::size_t begin = json_.position();
      json_.skip_value();
      const std::string_view value = text_.substr(begin, json_.position() - begin);
      if (key == "total_size") {
        if (index_.total_size) json_.fail("'total_size' occurs twice");
        read_total_size(value);
      } else {
        add(index_.other_metadata, key, std::string(value), json_);
      }
    }
  }

  // Some programs write it as a decimal fraction: 100.0.
  void read_total_size(std::string_view value) {
    const char* const end = value.data() + value.size();
    std::uint64_t whole = 0;
    double number = 0;
    auto result = std::from_chars(value.data(), end, whole);
    if (result.ec != std::errc() || result.ptr != end) {
      result = std::from_chars(value.data(), end, number);
      const bool is_whole = result.ec == std::errc() && result.ptr == end && number >= 0 &&
                            number < 0x1p64 && number == std::floor(number);
      if (!is_whole) json_.fail("'total_size' is not a number of bytes");
      whole = static_cast<std::uint64_t>(number);
    }
    index_.total_size = whole;
  }

  void read_map() {
    std::string key;
    std::string value;
    json_.begin_object();
    while (json_.next_key(key)) {
      json_.string(value);
      add(index_.weight_map, key, std::move(value), json_);
      value.clear();
    }
  }

  std::string_view text_;
  JsonScanner json_;
  ShardIndex index_{};
};

// Like Python's json.dumps: ASCII only.
void append_ascii_string(std::string& json, std::string_view text) {
  std::string quoted_text;
  append_json_string(quoted_text, text);
  const auto escape = [&](char32_t unit) {
    std::array<char, 16> code{};
    std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(unit));
    json += code.data();
  };
  for (std::size_t position = 0; position < quoted_text.size();) {
    const std::optional<char32_t> code_point = decode_utf8(quoted_text, position);
    if (!code_point) throw Error("index: the text " + quoted(text) + " is not valid UTF-8");
    if (*code_point < 0x7F) {
      json += static_cast<char>(*code_point);
    } else if (*code_point < 0x10000) {
      escape(*code_point);
    } else {
      escape(0xD800 + ((*code_point - 0x10000) >> 10));
      escape(0xDC00 + ((*code_point - 0x10000) & 0x3FF));
    }
  }
}

// An object inside the outermost one; values are JSON text.
void append_object(std::string& json, std::string_view name, const TextMap& values) {
  json += "  \"" + std::string(name) + "\": {";
  bool is_first = true;
  for (const auto& [key, value] : values) {
    json += std::exchange(is_first, false) ? "\n    " : ",\n    ";
    append_ascii_string(json, key);
    json += ": " + value;
  }
  json += values.empty() ? "}" : "\n  }";
}

}  // namespace

std::vector<std::string> ShardIndex::files() const {
  std::vector<std::string> files;
  for (const auto& [name, file] : weight_map) files.push_back(file);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

ShardIndex index_of(const ShardPlan& plan) {
  ShardIndex index{.total_size = plan.total_size};
  for (const Shard& shard : plan.shards) {
    for (const std::string& name : shard.tensors) index.weight_map.emplace(name, shard.file);
  }
  return index;
}

ShardIndex parse_shard_index(std::string_view json, const std::string& label,
                             const std::string& extension) {
  ShardIndex index;
  try {
    index = IndexParser(json).parse();
  } catch (const JsonRefusal& refusal) {
    throw Error(ErrorDetails{.problem = label + ": the index cannot be parsed at byte " +
                                        std::to_string(refusal.position) + ": " + refusal.what(),
                             .expected = {},
                             .got = {},
                             .hint = "the file is damaged or not the index of a sharded model"});
  }
  for (const std::string& file : index.files()) check_shard_name(file, label, extension);
  return index;
}

ShardIndex read_shard_index(const std::string& path) {
  const RandomAccessFile file(path);
  if (file.size() > largest_index) {
    throw Error(ErrorDetails{.problem = path + ": the file is too large for an index",
                             .expected = "at most " + std::to_string(largest_index) + " bytes",
                             .got = std::to_string(file.size()),
                             .hint = {}});
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return parse_shard_index(text, path, path.ends_with(".bin.index.json") ? ".bin" : ".safetensors");
}

std::string print_shard_index(const ShardIndex& index) {
  TextMap metadata = index.other_metadata;
  if (index.total_size) metadata["total_size"] = std::to_string(*index.total_size);
  TextMap files;
  for (const auto& [name, file] : index.weight_map) append_ascii_string(files[name], file);
  std::string json = "{\n";
  append_object(json, "metadata", metadata);
  json += ",\n";
  append_object(json, "weight_map", files);
  json += "\n}\n";
  return json;
}

void check_shard_name(const std::string& file, const std::string& label,
                      const std::string& extension) {
  const auto refuse = [&](const std::string& expected) {
    throw Error(ErrorDetails{.problem = label + ": the name of a shard is not allowed",
                             .expected = expected,
                             .got = quoted(file),
                             .hint = "do not load this checkpoint unless you trust its origin"});
  };
  constexpr std::string_view separators = "/\\";  // Windows's too: indexes are shared
  if (file.empty() || !file.ends_with(extension)) refuse("a name that ends in " + extension);
  if (file.find('\0') != std::string::npos) refuse("a name without zero bytes");
  if (separators.find(file.front()) != std::string_view::npos ||
      (file.size() > 1 && file[1] == ':')) {
    refuse("a relative path");
  }
  for (std::size_t begin = 0; begin <= file.size();) {
    const std::size_t end = std::min(file.find_first_of(separators, begin), file.size());
    if (file.compare(begin, end - begin, "..") == 0) refuse("a path without '..'");
    begin = end + 1;
  }
}

}  // namespace accelerant::format
