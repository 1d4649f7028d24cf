// Reads any bytes as a safetensors file. Either they are refused with an Error, or everything that
// the reader offers works on them and the writer makes a file of the same tensors.
#include <accelerant/core/error.h>
#include <accelerant/format/safetensors.h>
#include <format/shard_index.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace accelerant::format;

void require(bool condition) {
  if (!condition) std::abort();
}

class VectorSink final : public ByteSink {
 public:
  void write(std::span<const std::byte> bytes) override {
    content.insert(content.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> content;
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Half of the first dimension and the second half of the last.
void read_slice(const SafetensorsFile& file, const TensorInfo& tensor) {
  std::vector<DimRange> ranges(tensor.shape.size());
  if (!ranges.empty()) {
    ranges.front().end = tensor.shape.front() / 2;
    ranges.back().begin = ranges.back().end == DimRange::to_the_end ? tensor.shape.back() / 2 : 0;
  }
  try {
    std::vector<std::byte> target(file.slice_bytes(tensor.name, ranges));
    file.read_slice(tensor.name, ranges, target);
  } catch (const accelerant::Error&) {  // not at whole bytes
    require(dtype_bits(tensor.dtype) < 8);
  }
}

void check_tensors(const SafetensorsFile& file) {
  std::vector<TensorToWrite> tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    require(file.find(tensor.name) == &tensor);
    const std::span<const std::byte> view = file.view(tensor.name);
    std::vector<std::byte> copy(tensor.bytes());
    file.read(tensor.name, copy);
    require(text_of(view) == text_of(copy));
    read_slice(file, tensor);
    tensors.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = view});
  }
  std::optional<Metadata> metadata;
  if (file.has_metadata()) metadata = file.metadata();

  std::optional<SafetensorsWriter> writer;
  try {
    writer.emplace(tensors, metadata);
  } catch (const accelerant::Error&) {
    std::abort();
  }
  VectorSink sink;
  writer->write(sink);
  const SafetensorsFile again = SafetensorsFile::parse(sink.content);
  require(again.tensors() == writer->layout());
  require(again.metadata() == file.metadata() && again.has_metadata() == file.has_metadata());
  for (const TensorInfo& tensor : file.tensors()) {
    require(text_of(again.view(tensor.name)) == text_of(file.view(tensor.name)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    check_tensors(SafetensorsFile::parse(bytes));
  } catch (const accelerant::Error&) {
  }
  try {
    const ShardIndex index = parse_shard_index(text_of(bytes));
    require(parse_shard_index(print_shard_index(index)) == index);
  } catch (const accelerant::Error&) {
  }
  return 0;
}
