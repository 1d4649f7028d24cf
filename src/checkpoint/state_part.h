// A part of a checkpoint. Its values go to `<name>.json`, its tensors to `<name>.safetensors`;
// without values or tensors, that file is omitted.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "accelerant/tensor/named_state.h"
#include "store/checkpoint_folder.h"
#include "store/file_record.h"

namespace accelerant::checkpoint {

struct StatePart {
  std::string name = {};  // with "/" for a subfolder
  NamedState state = {};
};

// The size of its tensors.
uint64_t tensor_bytes(const StatePart& part);

// Throws Error if one of its tensors cannot be stored.
void require_storable(const StatePart& part);

// Writes its files and adds them to `records`. Tensors with several names are written once.
void write_part(const StatePart& part, const CheckpointFolder& folder,
                std::map<std::string, FileRecord>& records);

// Whether the manifest lists files of that part.
bool has_part(const Manifest& manifest, const std::string& name);

// Reads the part of a checkpoint; parts without a file are empty. The tensors are views of the
// mapped file: do not write to them, and do not change the file while they are alive.
NamedState read_part(const std::string& folder, const Manifest& manifest, const std::string& name);

}  // namespace accelerant::checkpoint
