#include "store/model_checksums.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors.h"
#include "core/files.h"
#include "core/texts.h"
#include "format/aligned_buffer.h"
#include "format/random_access_file.h"
#include "format/safetensors_header.h"
#include "store/checksum.h"
#include "store/manifest.h"
#include "store/parallel_reads.h"
#include "store/sealed_json.h"

namespace accelerant::checkpoint {
namespace {

using nlohmann::json;

// A block needs 20 bytes, so this is enough for models of 10 TB.
constexpr SealedFormat kModelSealed = {.format = "accelerant-model-checksums",
                                       .version = 1,
                                       .what = "list of a model's checksums",
                                       .largest_bytes = 256 << 20,
                                       .remedy =
                                           "without the list nothing is compared, so "
                                           "remove it if the model is good"};
constexpr std::uint64_t kSmallestBlock = 1 << 12;
constexpr std::uint64_t kLargestBlock = 8 << 20;  // a block is held in memory by each thread
constexpr std::size_t kBlocksAtATime = 8;
constexpr std::size_t kMostTensorsNamed = 3;

std::uint64_t blocks_of(std::uint64_t size, std::uint64_t block_bytes) {
  return size / block_bytes + static_cast<std::uint64_t>(size % block_bytes != 0);
}

FileChecksums parse_file(const json& value, const std::string& name, std::uint64_t block_bytes,
                         const std::string& source) {
  const std::string what = "the file '" + name + "'";
  check_sealed_fields(value, {"blocks", "size"}, what, source, kModelSealed);
  if (!value["size"].is_number_unsigned()) {
    refuse_sealed(source, kModelSealed, "the size of " + what + " in bytes",
                  shown_json(value["size"]));
  }
  FileChecksums file{.size = value["size"].get<std::uint64_t>(), .block_bytes = block_bytes};
  const json& blocks = value["blocks"];
  if (!blocks.is_array() || blocks.size() != blocks_of(file.size, block_bytes)) {
    refuse_sealed(source, kModelSealed, "a checksum for each block of " + what, shown_json(blocks));
  }
  for (const json& block : blocks) {
    const auto sum =
        block.is_string() ? from_hex(block.get_ref<const std::string&>()) : std::nullopt;
    if (!sum) {
      refuse_sealed(source, kModelSealed, "16 digits as a checksum of " + what, shown_json(block));
    }
    file.blocks.push_back(*sum);
  }
  return file;
}

std::vector<std::uint64_t> damaged_blocks(const format::RandomAccessFile& file,
                                          const FileChecksums& expected, int threads) {
  std::vector<std::uint64_t> damaged;
  std::mutex mutex;
  const std::size_t all = expected.blocks.size();
  run_in_parallel((all + kBlocksAtATime - 1) / kBlocksAtATime, threads, [&](std::size_t task) {
    const format::AlignedBuffer buffer(std::min(expected.block_bytes, expected.size));
    const std::size_t first = task * kBlocksAtATime;
    for (std::size_t block = first; block < std::min(first + kBlocksAtATime, all); ++block) {
      const std::uint64_t begin = block * expected.block_bytes;
      const auto content =
          buffer.bytes().first(std::min(expected.block_bytes, expected.size - begin));
      file.read(begin, content);
      if (checksum_of(content) == expected.blocks[block]) continue;
      const std::lock_guard lock(mutex);
      damaged.push_back(block);
    }
  });
  std::ranges::sort(damaged);
  return damaged;
}

// "the header", or the tensors that have bytes in this part of a safetensors file; empty if that
// cannot be told.
std::string content_at(const std::string& path, std::uint64_t begin, std::uint64_t end) {
  if (!path.ends_with(".safetensors")) return "";
  try {
    const auto file = format::SafetensorsFile::open(path, {.access = format::FileAccess::read});
    const std::uint64_t size = size_of_file(path).value_or(0);
    const std::uint64_t data =
        size - (file.tensors().empty() ? 0 : file.tensors().back().end);  // where it begins
    std::vector<std::string> names;
    if (begin < data) names.push_back("the header");
    for (const format::TensorInfo& tensor : file.tensors()) {
      if (data + tensor.begin < end && data + tensor.end > begin) {
        names.push_back("tensor " + format::quoted(tensor.name));
      }
    }
    return list_text(names, kMostTensorsNamed);
  } catch (const Error&) {
    return begin == 0 ? "the header, which cannot be read" : "";
  }
}

std::string remedy_of(const std::string& list) {
  return "restore the file; if it was replaced on purpose, remove " + list +
         ", which other programs that save models do not know";
}

}  // namespace

std::string to_text(const ModelChecksums& sums) {
  json files = json::object();
  std::uint64_t block_bytes = kChecksumBlock;
  for (const auto& [name, file] : sums) {
    block_bytes = file.block_bytes;
    json blocks = json::array();
    for (const std::uint64_t sum : file.blocks) blocks.push_back(to_hex(sum));
    files[name] = {{"size", file.size}, {"blocks", std::move(blocks)}};
  }
  return seal({{"block_bytes", block_bytes}, {"files", std::move(files)}}, kModelSealed);
}

ModelChecksums parse_model_checksums(const std::string& text, const std::string& source) {
  const json whole = unseal(text, source, kModelSealed, {"block_bytes", "files"});
  const json& block_bytes = whole["block_bytes"];
  if (!block_bytes.is_number_unsigned() || block_bytes < kSmallestBlock ||
      block_bytes > kLargestBlock) {
    refuse_sealed(source, kModelSealed,
                  "blocks of " + std::to_string(kSmallestBlock) + " to " +
                      std::to_string(kLargestBlock) + " bytes",
                  shown_json(block_bytes));
  }
  if (!whole["files"].is_object()) {
    refuse_sealed(source, kModelSealed, "files to be an object", shown_json(whole["files"]));
  }
  ModelChecksums sums;
  for (const auto& [name, value] : whole["files"].items()) {
    check_file_name(name);
    sums[name] = parse_file(value, name, block_bytes.get<std::uint64_t>(), source);
  }
  return sums;
}

std::optional<ModelChecksums> read_model_checksums(const std::string& path) {
  if (!path_exists(path)) return std::nullopt;
  try {
    return parse_model_checksums(read_file(path, kModelSealed.largest_bytes), path);
  } catch (const std::bad_alloc&) {
    throw Error(
        ErrorDetails{.problem = path + " cannot be read: its checksums do not fit into the memory",
                     .got = "a file of " + counted(size_of_file(path).value_or(0), "byte"),
                     .hint = kModelSealed.remedy});
  }
}

std::optional<std::string> damage_of(const std::string& path, const FileChecksums& expected,
                                     const std::string& list, int threads) {
  if (!path_exists(path)) {
    return Error(ErrorDetails{.problem = "A file of the model is missing: " + path,
                              .expected = "the files in " + list,
                              .hint = remedy_of(list)})
        .what();
  }
  return damage_in(format::RandomAccessFile(path), path, {.sums = expected, .list = list}, threads);
}

std::optional<std::string> other_size(const std::string& path, std::uint64_t size,
                                      const ListedFile& expected) {
  if (size == expected.sums.size) return std::nullopt;
  return Error(ErrorDetails{.problem = path + " is not the file that was saved",
                            .expected = counted(expected.sums.size, "byte"),
                            .got = std::to_string(size),
                            .hint = remedy_of(expected.list)})
      .what();
}

std::optional<std::string> damage_in(const format::RandomAccessFile& file, const std::string& path,
                                     const ListedFile& listed, int threads) {
  if (auto fault = other_size(path, file.size(), listed)) return fault;
  const FileChecksums& expected = listed.sums;
  const auto damaged = damaged_blocks(file, expected, threads);
  if (damaged.empty()) return std::nullopt;
  // The first place, and how many blocks there are in all.
  const std::uint64_t begin = damaged.front() * expected.block_bytes;
  std::size_t run = 1;
  while (run < damaged.size() && damaged[run] == damaged.front() + run) ++run;
  const std::uint64_t end = std::min(begin + run * expected.block_bytes, expected.size);
  const std::string content = content_at(path, begin, end);
  return Error(ErrorDetails{.problem = path + " is damaged in bytes " + std::to_string(begin) +
                                       " to " + std::to_string(end - 1) +
                                       (content.empty() ? "" : " (" + content + ")"),
                            .expected = "the checksums of " + listed.list,
                            .got = "others in " + std::to_string(damaged.size()) + " of " +
                                   counted(expected.blocks.size(), "block"),
                            .hint = remedy_of(listed.list)})
      .what();
}

void check_listed_file(const std::string& path, int threads) {
  constexpr int kMostTries = 5;
  const std::string list = join_path(folder_of(path), kModelChecksumsName);
  for (int tries = 1;; ++tries) {
    const auto sums = read_model_checksums(list);
    if (!sums) return;
    const auto listed = sums->find(name_of(path));
    if (listed == sums->end()) return;
    const auto damage = damage_of(path, listed->second, list, threads);
    if (!damage) return;
    // Whoever replaces a file takes it off the list first: then the list was that of another file.
    if (tries == kMostTries || read_model_checksums(list) == sums) throw Error(*damage);
  }
}

void forget_checksums_of(const std::string& path) {
  const std::string list = join_path(folder_of(path), kModelChecksumsName);
  std::optional<ModelChecksums> sums;
  try {
    sums = read_model_checksums(list);
  } catch (const Error&) {
    return;  // it accuses nobody, as nothing can be compared with it
  }
  if (!sums || !sums->contains(name_of(path))) return;
  // All of it: two processes that each take a file off would bring back what the other took off.
  remove_file(list);
  sync_folder(folder_of(list));
}

}  // namespace accelerant::checkpoint
