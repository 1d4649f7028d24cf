#include "accelerant/format/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "accelerant/core/error.h"
#include "core/texts.h"
#include "format/little_endian.h"
#include "format/random_access_file.h"
#include "format/safetensors_header.h"
#include "format/slice_plan.h"

namespace accelerant::format {

struct SafetensorsFile::State {
  std::string label = {};
  SafetensorsHeader header = {};
  std::uint64_t data_begin = 0;                          // where the data begins in the file
  std::optional<RandomAccessFile> file = {};             // empty for a file in memory
  std::optional<std::span<const std::byte>> bytes = {};  // the whole file, if mapped or in memory

  std::string prefix(const TensorInfo& tensor) const {
    return label + ": tensor " + quoted(tensor.name) + ": ";
  }

  // `source`: a path, or a file that is open.
  template <class Source>
  static std::unique_ptr<const State> of_file(const Source& source, const OpenOptions& options) {
    auto state = std::make_unique<State>();
    RandomAccessFile& file = state->file.emplace(source);
    state->label = file.path();
    auto [header, data_begin] =
        read_header([&](std::uint64_t position, auto target) { file.read(position, target); },
                    file.size(), state->label);
    state->header = std::move(header);
    state->data_begin = data_begin;
    if (options.access == FileAccess::map) state->bytes = file.map();
    return state;
  }
};

namespace {

void check_target(std::uint64_t wanted, std::size_t got, const std::string& prefix) {
  if (wanted == got) return;
  throw Error(ErrorDetails{.problem = prefix + "the buffer to read into has the wrong size",
                           .expected = std::to_string(wanted) + " bytes",
                           .got = std::to_string(got),
                           .hint = {}});
}

// Reads runs that lie close together through a buffer: a separate call for each would cost more
// than reading the bytes in between.
class RunReader {
 public:
  RunReader(const RandomAccessFile& file, std::uint64_t end) : file_(file), end_(end) {}

  void read(std::uint64_t position, std::span<std::byte> target) {
    if (position < begin_ || position + target.size() > begin_ + filled_) {
      begin_ = position;
      filled_ = std::min<std::uint64_t>(buffer_.size(), end_ - position);
      file_.read(position, std::span(buffer_).first(filled_));
    }
    std::memcpy(target.data(), buffer_.data() + (position - begin_), target.size());
  }

 private:
  const RandomAccessFile& file_;
  std::uint64_t end_;  // end of the tensor
  std::vector<std::byte> buffer_ = std::vector<std::byte>(std::size_t{1} << 18);
  std::uint64_t begin_ = 0;  // where the buffer's content begins
  std::uint64_t filled_ = 0;
};

constexpr std::uint64_t short_run = std::uint64_t{1}
                                    << 14;  // bytes; longer runs are read separately
constexpr std::uint64_t small_stride = std::uint64_t{1} << 16;  // bytes; so are runs farther apart

}  // namespace

SafetensorsFile::SafetensorsFile(std::unique_ptr<const State> state) : state_(std::move(state)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

SafetensorsFile SafetensorsFile::open(const std::string& path, const OpenOptions& options) {
  return SafetensorsFile(State::of_file(path, options));
}

SafetensorsFile SafetensorsFile::open(const RandomAccessFile& file, const OpenOptions& options) {
  return SafetensorsFile(State::of_file(file, options));
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string label) {
  auto state = std::make_unique<State>();
  state->label = std::move(label);
  const std::uint64_t length = header_length(bytes, bytes.size(), state->label);
  state->data_begin = length_bytes + length;
  state->header = parse_header(as_text(bytes.subspan(length_bytes, length)),
                               bytes.size() - state->data_begin, state->label);
  state->bytes = bytes;
  return SafetensorsFile(std::move(state));
}

const std::vector<TensorInfo>& SafetensorsFile::tensors() const { return state_->header.tensors; }

std::vector<std::string_view> SafetensorsFile::names() const {
  std::vector<std::string_view> names;
  names.reserve(tensors().size());
  for (const TensorInfo& tensor : tensors()) names.push_back(tensor.name);
  return names;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = state_->header.index.find(tensors(), name);
  return found ? &tensors()[*found] : nullptr;
}

const TensorInfo& SafetensorsFile::info(std::string_view name) const {
  if (const TensorInfo* const tensor = find(name)) return *tensor;
  throw Error(ErrorDetails{.problem = label() + ": no tensor named " + quoted(name),
                           .expected = {},
                           .got = {},
                           .hint = tensors().empty()
                                       ? "the file has no tensors"
                                       : "the file has " + counted(tensors().size(), "tensor") +
                                             ", the first is " + quoted(tensors().front().name)});
}

const Metadata& SafetensorsFile::metadata() const {
  static const Metadata none;
  return has_metadata() ? *state_->header.metadata : none;
}

bool SafetensorsFile::has_metadata() const { return state_->header.metadata.has_value(); }

const std::string& SafetensorsFile::label() const { return state_->label; }

std::span<const std::byte> SafetensorsFile::view(std::string_view name) const {
  const TensorInfo& tensor = info(name);
  if (!state_->bytes) {
    throw Error(ErrorDetails{.problem = state_->prefix(tensor) + "a view is not available",
                             .expected = {},
                             .got = "a file opened with FileAccess::read",
                             .hint = "call read(), or open the file with FileAccess::map"});
  }
  return state_->bytes->subspan(state_->data_begin + tensor.begin, tensor.bytes());
}

// `position` counts from the beginning of all tensors' data.
void SafetensorsFile::copy(std::uint64_t position, std::span<std::byte> target) const {
  if (target.empty()) return;
  position += state_->data_begin;
  if (state_->file) {
    state_->file->read(position, target);
  } else {
    std::memcpy(target.data(), state_->bytes->data() + position, target.size());
  }
}

void SafetensorsFile::read(std::string_view name, std::span<std::byte> target) const {
  const TensorInfo& tensor = info(name);
  check_target(tensor.bytes(), target.size(), state_->prefix(tensor));
  copy(tensor.begin, target);
}

void SafetensorsFile::read_part(std::string_view name, std::uint64_t offset,
                                std::span<std::byte> target) const {
  const TensorInfo& tensor = info(name);
  if (offset > tensor.bytes() || target.size() > tensor.bytes() - offset) {
    throw Error(ErrorDetails{
        .problem = state_->prefix(tensor) + "the part is outside the tensor",
        .expected = "at most " + std::to_string(tensor.bytes()) + " bytes",
        .got = std::to_string(target.size()) + " bytes from byte " + std::to_string(offset) + " on",
        .hint = {}});
  }
  copy(tensor.begin + offset, target);
}

void SafetensorsFile::read_slice(std::string_view name, const std::vector<DimRange>& ranges,
                                 std::span<std::byte> target) const {
  const TensorInfo& tensor = info(name);
  const SlicePlan plan = plan_slice(tensor, ranges, state_->prefix(tensor));
  check_target(plan.bytes, target.size(), state_->prefix(tensor));
  std::optional<RunReader> reader;
  if (state_->file && !plan.loops.empty() && plan.run < short_run &&
      plan.loops.back().stride < small_stride) {
    reader.emplace(*state_->file, state_->data_begin + tensor.end);
  }
  plan.for_each_run([&](std::uint64_t begin) {
    const std::span<std::byte> part = target.first(plan.run);
    target = target.subspan(plan.run);
    if (reader) {
      reader->read(state_->data_begin + tensor.begin + begin, part);
    } else {
      copy(tensor.begin + begin, part);
    }
  });
}

std::vector<std::int64_t> SafetensorsFile::slice_shape(std::string_view name,
                                                       const std::vector<DimRange>& ranges) const {
  const TensorInfo& tensor = info(name);
  return plan_slice(tensor, ranges, state_->prefix(tensor)).shape;
}

std::uint64_t SafetensorsFile::slice_bytes(std::string_view name,
                                           const std::vector<DimRange>& ranges) const {
  const TensorInfo& tensor = info(name);
  return plan_slice(tensor, ranges, state_->prefix(tensor)).bytes;
}

}  // namespace accelerant::format
