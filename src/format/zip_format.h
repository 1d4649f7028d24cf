// Constants of the zip format shared by its reader and its writer (APPNOTE 6.3, sections 4.3 and
// 4.5).
#pragma once

#include <cstddef>
#include <cstdint>

namespace accelerant::format::zip {

inline constexpr uint32_t local_signature = 0x04034b50;
inline constexpr uint32_t descriptor_signature = 0x08074b50;
inline constexpr uint32_t central_signature = 0x02014b50;
inline constexpr uint32_t end_signature = 0x06054b50;
inline constexpr uint32_t end64_signature = 0x06064b50;
inline constexpr uint32_t locator64_signature = 0x07064b50;

// Without names and extra fields.
inline constexpr std::size_t local_size = 30;
inline constexpr std::size_t central_size = 46;
inline constexpr std::size_t end_size = 22;
inline constexpr std::size_t end64_size = 56;
inline constexpr std::size_t locator64_size = 20;

inline constexpr uint16_t flag_encrypted = 1U << 0;
inline constexpr uint16_t flag_descriptor = 1U << 3;  // sizes and checksum follow the data
inline constexpr uint16_t flag_utf8 = 1U << 11;
inline constexpr uint16_t method_stored = 0;
inline constexpr uint16_t extra_zip64 = 1;

// Means that the number is in the zip64 extra field instead.
inline constexpr uint32_t in_extra_field = 0xFFFFFFFF;
inline constexpr uint16_t in_end64 = 0xFFFF;

}  // namespace accelerant::format::zip
