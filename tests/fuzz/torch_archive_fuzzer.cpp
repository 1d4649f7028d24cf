// Feeds bytes to the reader of torch's file format. Input that begins like a zip archive is read as
// one. All other input becomes the pickle inside an archive, since checksums and offsets would keep
// a fuzzer from ever getting that far. What could be read is written, read and written again: both
// files must have the same bytes.
#include <accelerant/core/error.h>
#include <format/torch_archive.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>
#include <variant>

#include "format/zip_reader.h"
#include "format/zip_writer.h"

namespace {

using namespace accelerant::format;

class StringSink : public ByteSink {
 public:
  void write(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string archive_around(std::span<const std::byte> pickle, bool is_module = false) {
  StringSink sink;
  ZipWriter archive(sink, "archive");
  if (is_module) archive.add("constants.pkl", std::string());
  archive.add("data.pkl", pickle);
  archive.add("data/0", std::string(24, '\x2a'));
  archive.add("data/1", std::string(8, '\x07'));
  archive.add("data/2", std::string());
  archive.add("version", "3\n");
  archive.finish();
  return std::move(sink.text);
}

// Reads the ends of every tensor, however large it says it is, and whether it is refused where that
// matters.
void read_ends(const PlainValue& value) {
  if (const auto* tensor = std::get_if<PlainTensor>(&value.content())) {
    const uint64_t size = bytes_in_rows(*tensor);
    std::byte bytes[64];
    const auto part = std::span(bytes).first(std::min<uint64_t>(size, sizeof bytes));
    read_in_rows(*tensor, 0, part);
    read_in_rows(*tensor, size - part.size(), part);
    try {
      refuse_expanded(*tensor, "input", "");
      if (size > tensor->storage->size()) std::abort();
    } catch (const accelerant::Error&) {
      if (size <= tensor->storage->size()) std::abort();
    }
  } else if (const auto* list = std::get_if<PlainList>(&value.content())) {
    for (const PlainValue& item : *list) read_ends(item);
  } else if (const auto* dict = std::get_if<PlainDict>(&value.content())) {
    for (const PlainItem& item : dict->items) read_ends(item.value);
  }
}

// Writes what is in `archive` to a new archive; empty if Python could not write it either.
std::string copy_of(std::span<const std::byte> archive, bool verify) {
  const PlainValue value = read_torch_archive(archive, nullptr, "input",
                                              {.verify_checksums = verify, .skip_numpy = true});
  read_ends(value);
  StringSink sink;
  try {
    write_torch_archive(value, sink);
  } catch (const accelerant::Error&) {
    return {};
  }
  return std::move(sink.text);
}

void read_and_copy(std::span<const std::byte> archive, bool verify) {
  std::string first;
  try {
    first = copy_of(archive, verify);
  } catch (const accelerant::Error&) {
    return;
  }
  // We must be able to read what we wrote: an Error here ends the program.
  if (!first.empty() && copy_of(bytes_of(first), true) != first) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  if (ZipReader::looks_like_zip(input)) {
    read_and_copy(input, true);
    read_and_copy(input, false);
  } else {
    read_and_copy(bytes_of(archive_around(input)), true);
    try {
      const std::string module = archive_around(input, /*is_module=*/true);
      read_module_archive(bytes_of(module), nullptr, "input");
    } catch (const accelerant::Error&) {
    }
  }
  return 0;
}
