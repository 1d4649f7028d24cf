// What a user can do if a checkpoint does not fit on the disk.
#pragma once

#include <cstdint>
#include <string>

namespace accelerant::checkpoint {

// A sentence or two on lines of their own, to append to an error. `bytes` is what the checkpoint
// needs, 0 if unknown. Nothing is removed here: which checkpoints can go is the user's choice.
std::string advice_on_full_disk(const std::string& checkpoint, std::uint64_t bytes);

}  // namespace accelerant::checkpoint
