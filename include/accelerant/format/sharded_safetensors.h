// Reads a model that lies in one safetensors file or in several with an index.
//
//   auto model = ShardedSafetensors::open("llama/model.safetensors.index.json");
//   for (const std::string& name : model.names()) model.file_of(name).read(name, target);
//
// Opening reads all headers and compares them with the index before any tensor is read: every file is
// there, every tensor is in the file the index names, and in no other.
//
// Owns the open files. It moves, and does not copy. Const methods may be called from several threads.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "accelerant/format/safetensors_file.h"
#include "accelerant/format/shard_index.h"

namespace accelerant::format {

struct ShardOptions {
  // How the files are read; see OpenOptions.
  FileAccess access = FileAccess::map;

  // Whether a tensor that the index does not name is an Error. Default: yes. Otherwise it is not seen.
  bool strict = true;
};

class ShardedSafetensors {
 public:
  // `path` is an index (a name that ends in ".json") or a single safetensors file. Throws Error.
  static ShardedSafetensors open(const std::string& path, const ShardOptions& options = {});

  // The index as it was read; of a single file, one that names it.
  const ShardIndex& index() const { return index_; }

  // In byte order.
  std::vector<std::string> names() const;

  // The file that holds the tensor. Throws Error if none does.
  const SafetensorsFile& file_of(const std::string& name) const;

  // Each file once, by name: reading file by file is fastest.
  const std::map<std::string, SafetensorsFile>& files() const { return files_; }

  // Bytes of all tensors that the index names. Writers count differently (tensors that share memory,
  // padding), so another `index().total_size` is no Error.
  std::uint64_t total_bytes() const;

 private:
  ShardedSafetensors() = default;

  std::string path_{};
  ShardIndex index_{};
  std::map<std::string, SafetensorsFile> files_{};
};

}  // namespace accelerant::format
