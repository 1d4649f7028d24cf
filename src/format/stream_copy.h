// Copies memory without filling the caches with what is written.
#pragma once

#include <cstddef>
#include <span>

namespace accelerant::format {

// Like memcpy, but bypasses the caches; for large data that is not used at once. `target` has at
// least the size of `source`.
void stream_copy(std::span<std::byte> target, std::span<const std::byte> source);

}  // namespace accelerant::format
