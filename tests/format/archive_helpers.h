// Archives and pickles for tests.
#pragma once

#include <format/torch_archive.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "format/zip_writer.h"

class StringSink : public accelerant::format::ByteSink {
 public:
  void write(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

inline std::string written(const accelerant::format::PlainValue& value) {
  StringSink sink;
  accelerant::format::write_torch_archive(value, sink);
  return sink.text;
}

// An archive "a" with exactly these records.
inline std::string archive_of(const std::vector<std::pair<std::string, std::string>>& records) {
  StringSink sink;
  accelerant::format::ZipWriter archive(sink, "a");
  for (const auto& [name, content] : records) archive.add(name, content);
  archive.finish();
  return sink.text;
}

// An archive with this pickle and one storage of 24 bytes, "0".
inline std::string archive_of_pickle(const std::string& pickle) {
  return archive_of({{"data.pkl", pickle}, {"data/0", std::string(24, '\1')}, {"version", "3\n"}});
}

inline accelerant::format::PlainValue read_back(
    const std::string& archive, const accelerant::format::TorchReadOptions& options = {}) {
  const auto copy = std::make_shared<const std::string>(archive);
  return accelerant::format::read_torch_archive(std::as_bytes(std::span(*copy)), copy, "test.pt",
                                                options);
}

inline std::shared_ptr<accelerant::format::PlainStorage> storage_of(const std::string& text) {
  const auto owner = std::make_shared<const std::string>(text);
  return std::make_shared<accelerant::format::PlainStorage>(std::as_bytes(std::span(*owner)),
                                                            owner);
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The elements in row-major order.
inline std::string rows_of(const accelerant::format::PlainTensor& tensor) {
  std::string rows(accelerant::format::bytes_in_rows(tensor), '\0');
  accelerant::format::read_in_rows(tensor, 0, std::as_writable_bytes(std::span(rows)));
  return rows;
}

// --- Parts of pickles -----------------------------------------------------------------------------

// The pickle of one value: adds the beginning and the end to its instructions.
inline std::string pickle_of(const std::string& instructions) {
  return "\x80\x02" + instructions + ".";
}

inline std::string pickled_text(const std::string& text) {
  return std::string("\x8c") + static_cast<char>(text.size()) + text;
}

// The persistent id of storage `key`, with this type and number of elements.
inline std::string pickled_storage(const std::string& key = "0",
                                   const std::string& type = "torch\nFloatStorage",
                                   char numel = 6) {
  return "(" + pickled_text("storage") + "c" + type + "\n" + pickled_text(key) +
         pickled_text("cpu") + "K" + numel + "tQ";
}

// A call to _rebuild_tensor_v2 with these arguments.
inline std::string pickled_tensor(const std::string& storage, const std::string& offset,
                                  const std::string& sizes, const std::string& strides,
                                  const std::string& requires_grad = "\x89") {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + sizes + strides +
         requires_grad + "ccollections\nOrderedDict\n)RtR";
}
