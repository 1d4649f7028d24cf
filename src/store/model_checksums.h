// The checksums of a saved model, in a file beside it that other programs ignore:
//
//   {"block_bytes": 1048576, "checksum": "…", "files": {"model.safetensors": {"blocks": ["…", …],
//    "size": 12}}, "format": "accelerant-model-checksums", "version": 1}
//
// Every block of 1 MiB of a file has a checksum of its own (64-bit XXH3), so that damage has a
// place, several threads can compare, and a block is still in the cache when its bytes are copied.
// Files that are not listed are not compared: a list may be missing or lag behind, as when another
// program adds a file.
//
//   ModelChecksums sums;
//   FileWriter file(path, SumUp::blocks);
//   ...
//   sums["model.safetensors"] = file.finish_blocks();
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accelerant::format {
class RandomAccessFile;
}

namespace accelerant::checkpoint {

inline constexpr const char* kModelChecksumsName = "model.checksums.json";
inline constexpr std::uint64_t kChecksumBlock = 1 << 20;  // bytes

struct FileChecksums {
  std::uint64_t size = 0;                      // of the file, in bytes
  std::uint64_t block_bytes = kChecksumBlock;  // the same for all files of a list
  std::vector<std::uint64_t> blocks = {};      // XXH3 of each block; the last may be shorter

  bool operator==(const FileChecksums&) const = default;
};

// What a list says about one file.
struct ListedFile {
  FileChecksums sums = {};
  std::string list = {};  // the path of the list, for errors
};

// By the name of the file in the folder.
using ModelChecksums = std::map<std::string, FileChecksums>;

std::string to_text(const ModelChecksums& sums);

// Throws Error, naming `source`, for anything that to_text would not write.
ModelChecksums parse_model_checksums(const std::string& text,
                                     const std::string& source = kModelChecksumsName);

// The list at this path; empty if there is none. Throws Error if it is damaged.
std::optional<ModelChecksums> read_model_checksums(const std::string& path);

// What is wrong with a file that should have these checksums: an Error's text that names the bytes
// and, if the file tells, the tensors in them; empty if nothing is. Reads all of the file with at
// most `threads` threads. `list` is the path of the list, for the text.
std::optional<std::string> damage_of(const std::string& path, const FileChecksums& expected,
                                     const std::string& list, int threads);

// The same for a file that is open; `path` is only for the text.
std::optional<std::string> damage_in(const format::RandomAccessFile& file, const std::string& path,
                                     const ListedFile& listed, int threads);

// The part of it that needs no reading: a file of `size` bytes has another size than expected.
std::optional<std::string> other_size(const std::string& path, std::uint64_t size,
                                      const ListedFile& expected);

// Compares a file with the list in its folder, if that names it. Throws Error if it differs.
void check_listed_file(const std::string& path, int threads);

// Removes the list if it names this file, which is about to be replaced: a list must never accuse a
// good file. Does nothing if the list cannot be read.
void forget_checksums_of(const std::string& path);

}  // namespace accelerant::checkpoint
