// A piece of a checkpoint: its values go to `<name>.json`, its tensors to `<name>.safetensors`; an
// empty object, and no tensors, have no file.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "accelerant/tensor/named_state.h"
#include "store/checkpoint_folder.h"
#include "store/file_record.h"

namespace accelerant::checkpoint {

struct StatePart {
  std::string name = {};  // with "/" for a sub-folder
  NamedState state = {};
};

// The bytes of its tensors.
uint64_t tensor_bytes(const StatePart& part);

// An Error if a tensor of it cannot be stored.
void require_storable(const StatePart& part);

// Writes its files and adds them to `records`. Tensors of several names are written once.
void write_part(const StatePart& part, const CheckpointFolder& folder,
                std::map<std::string, FileRecord>& records);

// Whether the manifest has files of that part.
bool has_part(const Manifest& manifest, const std::string& name);

// The part of a checkpoint; what has no file is empty. The tensors lie in the file, which is
// mapped: they are to be read, not written, and the file must not be changed while they are alive.
NamedState read_part(const std::string& folder, const Manifest& manifest, const std::string& name);

}  // namespace accelerant::checkpoint
