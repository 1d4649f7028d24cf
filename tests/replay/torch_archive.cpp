// Reads files written by torch.save, describes what is in them, and writes them again.
//
// Input: {"op": "kind", "path": "..."}
//        {"op": "read", "path": "...", "verify": true}
//        {"op": "copy", "path": "...", "to": "..."}: read, and written again
//        {"op": "large", "to": "...", "bytes": [sizes]}: writes a list of tensors of zeros; the
//            last byte of each is its number in the list, counted from 1
// Output: {"kind": name}, {"value": description}, {} or {"error": message}. In descriptions,
// strings and bytes are hexadecimal, floats are given as their 64 bits, and storages are numbered
// in the order of their appearance.
#include <fcntl.h>
#include <format/torch_archive.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <map>

#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace torch_archive {  // compiled in one unit with other topics, so it keeps its names apart
namespace {

using nlohmann::json;
using namespace accelerant::format;

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += digits[std::to_integer<std::size_t>(byte >> 4)];
    text += digits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::string hex(const std::string& text) { return hex(std::as_bytes(std::span(text))); }

class Describer {
 public:
  json describe(const PlainValue& value) {
    return std::visit([&](const auto& content) { return (*this)(content); }, value.content());
  }

 private:
  json operator()(std::monostate) { return nullptr; }
  json operator()(bool value) { return value; }
  json operator()(int64_t value) { return value; }
  json operator()(double value) { return {{"float", std::bit_cast<uint64_t>(value)}}; }
  json operator()(const std::string& text) { return {{"str", hex(text)}}; }
  json operator()(const PlainBytes& bytes) {
    return {{bytes.is_bytearray ? "bytearray" : "bytes", hex(bytes.bytes)}};
  }
  json operator()(const PlainList& list) { return {{"list", all(list)}}; }
  json operator()(const PlainTuple& tuple) {
    return {{tuple.is_size ? "size" : "tuple", all(tuple.items)}};
  }
  json operator()(const PlainSet& set) {
    std::vector<std::string> texts;
    for (const PlainValue& item : set.items) texts.push_back(describe(item).dump());
    std::ranges::sort(texts);
    return {{"set", texts}};
  }
  json operator()(const PlainDict& dict) {
    const char* const kind = dict.kind == PlainDictKind::ordered   ? "ordered"
                             : dict.kind == PlainDictKind::counter ? "counter"
                                                                   : "dict";
    return {{kind, items(dict.items)}, {"attributes", items(dict.attributes)}};
  }
  json operator()(const PlainDtype& dtype) { return {{"dtype", dtype.name}}; }
  json operator()(const PlainDevice& device) { return {{"device", device.name}}; }
  json operator()(const PlainTensor& tensor) {
    json number = nullptr;
    bool is_new = false;
    if (tensor.storage->size() > 0) {  // torch.load does not keep empty storages shared
      const auto [known, inserted] = storages_.try_emplace(tensor.storage.get(), storages_.size());
      number = known->second;
      is_new = inserted;
    }
    json result = {{"dtype", tensor.dtype},
                   {"shape", tensor.shape},
                   {"strides", tensor.strides},
                   {"offset", tensor.storage_offset},
                   {"requires_grad", tensor.requires_grad},
                   {"parameter", tensor.is_parameter},
                   {"storage", number},
                   {"location", tensor.storage->location()}};
    if (is_new) result["bytes"] = hex(tensor.storage->bytes());
    // Damaged files may have tensors that are huge because of strides of 0.
    if (tensor.numel() < 10'000) {
      std::vector<std::byte> rows(bytes_in_rows(tensor));
      read_in_rows(tensor, 0, rows);
      result["elements"] = hex(rows);
    }
    return {{"tensor", result}};
  }

  json all(const std::vector<PlainValue>& values) {
    json result = json::array();
    for (const PlainValue& value : values) result.push_back(describe(value));
    return result;
  }
  json items(const std::vector<PlainItem>& values) {
    json result = json::array();
    for (const PlainItem& item : values) {
      json key = describe(item.key);
      result.push_back({std::move(key), describe(item.value)});
    }
    return result;
  }

  std::map<const PlainStorage*, std::size_t> storages_;
};

// A file in which runs of zeros take no space on disk.
class SparseFile : public ByteSink {
 public:
  explicit SparseFile(const std::string& path)
      : descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
    if (descriptor_ < 0) throw accelerant::Error(path + " cannot be written");
  }
  ~SparseFile() override { close(descriptor_); }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;

  void write(std::span<const std::byte> bytes) override {
    size_ += static_cast<off_t>(bytes.size());
    const bool zeros = std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
    const auto done = zeros ? lseek(descriptor_, static_cast<off_t>(bytes.size()), SEEK_CUR)
                            : ::write(descriptor_, bytes.data(), bytes.size());
    if (done < 0 || ftruncate(descriptor_, size_) != 0) throw accelerant::Error("cannot write");
  }

 private:
  int descriptor_;
  off_t size_ = 0;
};

void write_large(const std::string& path, const std::vector<std::size_t>& sizes) {
  PlainList tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    void* const memory = mmap(nullptr, sizes[i], PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw accelerant::Error("cannot map");
    const std::size_t size = sizes[i];
    const std::shared_ptr<void> owner(memory, [size](void* p) { munmap(p, size); });
    static_cast<std::byte*>(memory)[size - 1] = static_cast<std::byte>(i + 1);
    tensors.push_back(PlainTensor::contiguous(
        "U8", {static_cast<int64_t>(size)},
        std::make_shared<PlainStorage>(std::span(static_cast<const std::byte*>(memory), size),
                                       owner)));
  }
  SparseFile file(path);
  write_torch_archive(std::move(tensors), file);
}

std::string name_of_kind(ArchiveKind kind) {
  switch (kind) {
    case ArchiveKind::python_state:
      return "python_state";
    case ArchiveKind::torchscript_or_cpp:
      return "torchscript_or_cpp";
    case ArchiveKind::legacy:
      return "legacy";
    case ArchiveKind::not_an_archive:
      break;
  }
  return "not_an_archive";
}

json run(const json& document) {
  const std::string op = document.at("op");
  if (op == "large") {
    write_large(document.at("to"), document.at("bytes"));
    return json::object();
  }
  const std::string path = document.at("path");
  if (op == "kind") return {{"kind", name_of_kind(kind_of_archive(path))}};
  const PlainValue value =
      read_torch_archive(path, {.verify_checksums = document.value("verify", true)});
  if (op == "read") return {{"value", Describer().describe(value)}};
  if (op != "copy") throw BadDocument("unknown op " + op);
  SparseFile file(document.at("to"));
  write_torch_archive(value, file);
  return json::object();
}

}  // namespace
}  // namespace torch_archive

nlohmann::json replay_torch_archive(const nlohmann::json& document) {
  return result_or_error([&] { return torch_archive::run(document); });
}

}  // namespace replay
