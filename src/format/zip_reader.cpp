#include "format/zip_reader.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "accelerant/core/error.h"
#include "format/little_endian.h"
#include "format/zip_format.h"

namespace accelerant::format {
namespace {

uint16_t u16(const std::byte* bytes) { return read_little_endian<uint16_t>(bytes); }
uint32_t u32(const std::byte* bytes) { return read_little_endian<uint32_t>(bytes); }
uint64_t u64(const std::byte* bytes) { return read_little_endian<uint64_t>(bytes); }

// One entry of the directory, before its data is located.
struct Entry {
  uint16_t flags = 0;
  uint16_t method = 0;
  uint32_t checksum = 0;
  uint64_t packed_size = 0;
  uint64_t size = 0;
  uint64_t header_offset = 0;
};

// Fills in the numbers that are in the extra fields because they need more than 32 bits. Returns
// false if one is missing or the fields are damaged.
bool read_extra_fields(std::span<const std::byte> extra, Entry& entry) {
  std::vector<uint64_t*> wanted;
  for (uint64_t* number : {&entry.size, &entry.packed_size, &entry.header_offset}) {
    if (*number == zip::in_extra_field) wanted.push_back(number);
  }
  while (extra.size() >= 4) {
    const uint16_t id = u16(extra.data());
    const std::size_t size = u16(extra.data() + 2);
    extra = extra.subspan(4);
    if (size > extra.size()) return false;
    if (id == zip::extra_zip64) {
      if (size < 8 * wanted.size()) return false;
      for (std::size_t i = 0; i < wanted.size(); ++i) *wanted[i] = u64(extra.data() + 8 * i);
      return true;
    }
    extra = extra.subspan(size);
  }
  return wanted.empty();
}

}  // namespace

// Where a record lies, to check that no two overlap.
struct ZipReader::Extent {
  uint64_t begin;
  uint64_t end;
};

void ZipReader::fail(const std::string& what) const {
  throw Error(ErrorDetails{.problem = name_ + " is a damaged archive: " + what,
                           .hint = "save or copy it again"});
}

bool ZipReader::looks_like_zip(std::span<const std::byte> bytes) {
  return bytes.size() >= 4 && u32(bytes.data()) == zip::local_signature;
}

ZipReader::ZipReader(std::span<const std::byte> archive, std::string name)
    : archive_(archive), name_(std::move(name)) {
  read_directory(find_directory());
}

const ZipRecord* ZipReader::find(std::string_view record) const {
  const auto found = records_.find(folder_ + std::string(record));
  return found == records_.end() ? nullptr : &found->second;
}

void ZipReader::expect_stored(std::string_view unread_folder) const {
  const std::string unread = folder_ + std::string(unread_folder);
  for (const auto& [record, method] : compressed_) {
    if (!unread_folder.empty() && record.starts_with(unread)) continue;
    throw Error(ErrorDetails{.problem = name_ + " has compressed records",
                             .expected = "uncompressed records, as torch.save writes them",
                             .got = record + " with compression method " + std::to_string(method),
                             .hint = "pack it again without compression (zip -0)"});
  }
}

bool ZipReader::has_folder(std::string_view folder) const {
  const std::string prefix = folder_ + std::string(folder);
  return std::ranges::any_of(records_,
                             [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

void ZipReader::verify_all() const {
  expect_stored();
  for (const auto& [name, record] : records_) verify(record, name);
}

void ZipReader::verify(const ZipRecord& record, std::string_view record_name) const {
  if (record.checksum == 0) return;
  // crc32 takes 32-bit lengths; crc32_z takes size_t.
  const auto actual = static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(record.bytes.data()), record.bytes.size()));
  if (actual != record.checksum) {
    fail("the checksum of record " + std::string(record_name) + " is wrong");
  }
}

// The archive ends with a pointer to its directory and, optionally, a comment.
ZipReader::Directory ZipReader::find_directory() const {
  constexpr std::size_t longest_comment = 0xFFFF;
  const std::size_t size = archive_.size();
  if (size < zip::end_size) fail("it is truncated");
  const std::size_t last = size - zip::end_size;
  for (std::size_t back = 0; back <= std::min(last, longest_comment); ++back) {
    const std::byte* const end = archive_.data() + last - back;
    if (u32(end) != zip::end_signature || u16(end + 20) != back) continue;
    if (u16(end + 4) != 0 || u16(end + 6) != 0 || u16(end + 8) != u16(end + 10)) {
      fail("it is one part of a multi-part archive");
    }
    const Directory directory = read_end64(
        last - back, {.offset = u32(end + 16), .size = u32(end + 12), .count = u16(end + 10)});
    return directory;
  }
  fail("its directory is missing; the file may be truncated");
}

// Archives of torch always have the 64-bit form too; both must agree.
ZipReader::Directory ZipReader::read_end64(std::size_t end, const Directory& from_end) const {
  Directory directory = from_end;
  std::size_t directory_end = end;
  const std::byte* const locator = archive_.data() + end - zip::locator64_size;
  if (end >= zip::locator64_size && u32(locator) == zip::locator64_signature) {
    const uint64_t place = u64(locator + 8);
    const std::size_t before_locator = end - zip::locator64_size;
    if (before_locator < zip::end64_size || place > before_locator - zip::end64_size) {
      fail("its 64-bit directory lies outside the file");
    }
    const std::byte* const end64 = archive_.data() + place;
    if (u32(end64) != zip::end64_signature) fail("its 64-bit directory is not where it should be");
    if (u32(end64 + 16) != 0 || u32(end64 + 20) != 0 || u64(end64 + 24) != u64(end64 + 32)) {
      fail("it is one part of a multi-part archive");
    }
    directory = {.offset = u64(end64 + 48), .size = u64(end64 + 40), .count = u64(end64 + 32)};
    const auto differ = [](uint64_t narrow, uint64_t wide, uint64_t saturated) {
      return narrow != wide && narrow != saturated;
    };
    if (differ(from_end.offset, directory.offset, zip::in_extra_field) ||
        differ(from_end.size, directory.size, zip::in_extra_field) ||
        differ(from_end.count, directory.count, zip::in_end64)) {
      fail("its two directories differ");
    }
    directory_end = place;
  }
  if (directory.offset > directory_end || directory.size != directory_end - directory.offset ||
      directory.count > directory.size / zip::central_size) {
    fail("its directory lies outside the file");
  }
  return directory;
}

void ZipReader::read_directory(const Directory& directory) {
  std::size_t at = directory.offset;
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < directory.count; ++i) {
    std::string name;
    extents.push_back(read_central(directory, at, name));
    if (i > 0) continue;
    // As in torch, the first record determines the folder of all.
    const std::size_t slash = name.find('/');
    if (slash == std::string::npos)
      fail("its records are not in a folder, so torch did not write it");
    folder_ = name.substr(0, slash + 1);
  }
  if (at != directory.offset + directory.size) fail("its directory has more bytes than records");
  std::ranges::sort(extents, {}, &Extent::begin);
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) fail("two of its records overlap");
  }
}

// Reads the entry at `at`, moves `at` past it, and adds the record.
ZipReader::Extent ZipReader::read_central(const Directory& directory, std::size_t& at,
                                          std::string& name) {
  const std::size_t directory_end = directory.offset + directory.size;
  if (directory_end - at < zip::central_size) fail("its directory is truncated");
  const std::byte* const central = archive_.data() + at;
  if (u32(central) != zip::central_signature) fail("its directory is damaged");
  Entry entry{.flags = u16(central + 8),
              .method = u16(central + 10),
              .checksum = u32(central + 16),
              .packed_size = u32(central + 20),
              .size = u32(central + 24),
              .header_offset = u32(central + 42)};
  const std::size_t name_size = u16(central + 28);
  const std::size_t extra_size = u16(central + 30);
  const std::size_t comment_size = u16(central + 32);
  at += zip::central_size;
  if (directory_end - at < name_size + extra_size + comment_size)
    fail("its directory is truncated");
  name = as_text(archive_.subspan(at, name_size));
  if (!read_extra_fields(archive_.subspan(at + name_size, extra_size), entry)) {
    fail("the entry of " + name + " is damaged");
  }
  at += name_size + extra_size + comment_size;
  if ((entry.flags & zip::flag_encrypted) != 0) fail("its record " + name + " is encrypted");
  if (entry.method != zip::method_stored) {
    compressed_.emplace_back(name, entry.method);
  } else if (entry.packed_size != entry.size) {
    fail("its record " + name + " has two different sizes");
  }

  // The record's own header must agree, and its data must end before the directory begins.
  const auto outside = [&](uint64_t offset, uint64_t size) {
    return offset > directory.offset || size > directory.offset - offset;
  };
  if (outside(entry.header_offset, zip::local_size))
    fail("its record " + name + " lies outside the file");
  const std::byte* const local = archive_.data() + entry.header_offset;
  const std::size_t local_name_size = u16(local + 26);
  const uint64_t header_size = zip::local_size + local_name_size + u16(local + 28);
  if (outside(entry.header_offset, header_size) ||
      outside(entry.header_offset + header_size, entry.packed_size)) {
    fail("its record " + name + " lies outside the file");
  }
  if (u32(local) != zip::local_signature || u16(local + 8) != entry.method ||
      u16(local + 6) != entry.flags ||
      as_text(archive_.subspan(entry.header_offset + zip::local_size, local_name_size)) != name) {
    fail("its record " + name + " does not match the directory");
  }
  const uint64_t begin = entry.header_offset + header_size;
  const ZipRecord record{.bytes = archive_.subspan(begin, entry.packed_size),
                         .checksum = entry.checksum};
  if (!records_.emplace(name, record).second) fail("it has two records named " + name);
  return {.begin = entry.header_offset, .end = begin + entry.packed_size};
}

}  // namespace accelerant::format
