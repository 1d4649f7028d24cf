// The records of a zip archive as torch writes it: stored, not compressed. (Only the code of
// TorchScript archives is compressed; such records can be listed but not read.)
//
// The whole list of records is checked when the archive is opened: every record lies inside the
// file, agrees with its own header, and overlaps no other. The rest of the code may rely on that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accelerant::format {

struct ZipRecord {
  std::span<const std::byte> bytes;
  uint32_t checksum;  // CRC-32 from the file; 0 if torch was told not to compute it
};

class ZipReader {
 public:
  // Borrows the bytes of the archive. `name` is the file's name for messages. Throws Error if torch
  // could not have written the archive.
  ZipReader(std::span<const std::byte> archive, std::string name);

  // True if the bytes begin like a zip archive.
  static bool looks_like_zip(std::span<const std::byte> bytes);

  // A record of the archive's folder, such as "data.pkl"; nullptr if there is none.
  const ZipRecord* find(std::string_view record) const;

  // Throws Error if a record is compressed; its bytes would be meaningless. Records in
  // `unread_folder`, such as "code/", may be compressed.
  void expect_stored(std::string_view unread_folder = {}) const;

  // True if there is a record whose name begins with `folder`, such as "code/".
  bool has_folder(std::string_view folder) const;

  // Compares the checksum of a record, if it has one; throws Error if it is wrong.
  void verify(const ZipRecord& record, std::string_view record_name) const;

  // The same for all records; none may be compressed.
  void verify_all() const;

 private:
  struct Directory {
    uint64_t offset;
    uint64_t size;
    uint64_t count;
  };
  struct Extent;

  [[noreturn]] void fail(const std::string& what) const;
  Directory find_directory() const;
  Directory read_end64(std::size_t end, const Directory& from_end) const;
  void read_directory(const Directory& directory);
  Extent read_central(const Directory& directory, std::size_t& at, std::string& name);

  std::span<const std::byte> archive_;
  std::string name_;
  std::string folder_;                                   // including the '/'
  std::vector<std::pair<std::string, int>> compressed_;  // records and their methods
  std::unordered_map<std::string, ZipRecord> records_;
};

}  // namespace accelerant::format
