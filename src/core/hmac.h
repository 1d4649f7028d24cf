// HMAC with SHA-256 (RFC 2104, FIPS 180-4): proves that somebody knows a key without sending it.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace accelerant {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> message);

// Leaves no copy of the key in memory.
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);

// Takes the same time wherever the bytes differ, so that nobody can find a digest byte by byte.
bool equal_in_constant_time(std::span<const std::byte> one, std::span<const std::byte> other);

}  // namespace accelerant
