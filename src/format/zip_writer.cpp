#include "format/zip_writer.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "accelerant/core/error.h"
#include "format/little_endian.h"
#include "format/zip_format.h"

namespace accelerant::format {
namespace {

constexpr uint64_t alignment = 64;

void put16(std::string& target, std::size_t value) {
  append_little_endian(target, static_cast<uint16_t>(value));
}
void put32(std::string& target, uint64_t value) {
  append_little_endian(target, static_cast<uint32_t>(value));
}
void put64(std::string& target, uint64_t value) { append_little_endian(target, value); }

bool is_wide(uint64_t value) { return value >= zip::in_extra_field; }
uint64_t narrow(uint64_t value) { return std::min<uint64_t>(value, zip::in_extra_field); }

// The numbers that do not fit in 32 bits.
std::string zip64_extra(uint64_t size, uint64_t offset) {
  std::string numbers;
  if (is_wide(size)) {
    put64(numbers, size);
    put64(numbers, size);
  }
  if (is_wide(offset)) put64(numbers, offset);
  if (numbers.empty()) return {};
  std::string extra;
  put16(extra, zip::extra_zip64);
  put16(extra, numbers.size());
  return extra + numbers;
}

// An extra field that torch uses for padding.
std::string padding_extra(uint64_t without_padding) {
  const uint64_t start = without_padding + 4;
  const uint64_t padding = (alignment - start % alignment) % alignment;
  std::string extra = "FB";
  put16(extra, padding);
  return extra + std::string(padding, 'Z');
}

// The fields that a record's own header and the directory share. An empty record has no descriptor.
std::string common_fields(bool has_data) {
  std::string fields;
  put16(fields, 0);  // version needed; torch writes 0
  put16(fields, zip::flag_utf8 | (has_data ? zip::flag_descriptor : 0));
  put16(fields, zip::method_stored);
  put32(fields, 0);  // no time, so the same content gives the same bytes
  return fields;
}

// Passes the bytes of a record on and computes their checksum.
class RecordSink final : public ByteSink {
 public:
  explicit RecordSink(ByteSink& target) : target_(target) {}

  void write(std::span<const std::byte> bytes) override {
    // In pieces that stay in the cache between checksum and sink.
    constexpr std::size_t piece_size = std::size_t{1} << 18;
    for (std::size_t at = 0; at < bytes.size(); at += piece_size) {
      const auto piece = bytes.subspan(at, std::min(piece_size, bytes.size() - at));
      checksum_ = crc32_z(checksum_, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
      target_.write(piece);
      size_ += piece.size();
    }
  }

  uint64_t size() const { return size_; }
  uint32_t checksum() const { return static_cast<uint32_t>(checksum_); }

 private:
  ByteSink& target_;
  uLong checksum_ = crc32_z(0, nullptr, 0);
  uint64_t size_ = 0;
};

}  // namespace

ZipWriter::ZipWriter(ByteSink& sink, std::string folder)
    : sink_(sink), folder_(std::move(folder) + "/") {}

void ZipWriter::write(std::string_view bytes) {
  sink_.write(std::as_bytes(std::span(bytes)));
  written_ += bytes.size();
}

void ZipWriter::add(std::string_view name, std::string_view text) {
  add(name, std::as_bytes(std::span(text)));
}

void ZipWriter::add(std::string_view name, std::span<const std::byte> bytes) {
  add(name, bytes.size(), [&](ByteSink& sink) { sink.write(bytes); });
}

void ZipWriter::add(std::string_view name, uint64_t size,
                    const std::function<void(ByteSink& sink)>& produce) {
  Entry entry{.name = folder_ + std::string(name), .offset = written_, .size = size, .checksum = 0};
  std::string extra = zip64_extra(entry.size, entry.offset);
  extra += padding_extra(written_ + zip::local_size + entry.name.size() + extra.size());
  std::string header;
  put32(header, zip::local_signature);
  header += common_fields(entry.size > 0);
  put32(header, 0);  // the checksum follows the data
  put32(header, is_wide(entry.size) ? zip::in_extra_field : 0);
  put32(header, is_wide(entry.size) ? zip::in_extra_field : 0);
  put16(header, entry.name.size());
  put16(header, extra.size());
  write(header + entry.name + extra);

  RecordSink record(sink_);
  produce(record);
  if (record.size() != size) {
    throw Error(ErrorDetails{.problem = "a record of an archive has the wrong size",
                             .expected = std::to_string(size) + " bytes for " + entry.name,
                             .got = std::to_string(record.size())});
  }
  written_ += size;
  entry.checksum = record.checksum();

  if (entry.size > 0) {
    std::string descriptor;
    put32(descriptor, zip::descriptor_signature);
    put32(descriptor, entry.checksum);
    // torch computes the length of this with the same condition.
    const auto put_size = is_wide(entry.size) || is_wide(entry.offset) ? put64 : put32;
    put_size(descriptor, entry.size);
    put_size(descriptor, entry.size);
    write(descriptor);
  }
  entries_.push_back(std::move(entry));
}

void ZipWriter::finish() {
  const uint64_t directory_offset = written_;
  for (const Entry& entry : entries_) {
    const std::string extra = zip64_extra(entry.size, entry.offset);
    std::string central;
    put32(central, zip::central_signature);
    put16(central, 0);  // no particular system
    central += common_fields(entry.size > 0);
    put32(central, entry.checksum);
    put32(central, narrow(entry.size));
    put32(central, narrow(entry.size));
    put16(central, entry.name.size());
    put16(central, extra.size());
    put16(central, 0);  // no comment
    put16(central, 0);  // on the first disk
    put16(central, 0);  // attributes
    put32(central, 0);
    put32(central, narrow(entry.offset));
    write(central + entry.name + extra);
  }
  write_end(directory_offset, written_ - directory_offset);
}

void ZipWriter::write_end(uint64_t directory_offset, uint64_t directory_size) {
  const uint64_t end64_offset = written_;
  std::string end;
  put32(end, zip::end64_signature);
  put64(end, zip::end64_size - 12);  // the bytes after this number
  put16(end, 0x031e);                // the value torch writes
  put16(end, 45);                    // the format version that supports 64 bits
  put32(end, 0);
  put32(end, 0);
  put64(end, entries_.size());
  put64(end, entries_.size());
  put64(end, directory_size);
  put64(end, directory_offset);

  put32(end, zip::locator64_signature);
  put32(end, 0);
  put64(end, end64_offset);
  put32(end, 1);

  put32(end, zip::end_signature);
  put16(end, 0);
  put16(end, 0);
  put16(end, std::min<std::size_t>(entries_.size(), zip::in_end64));
  put16(end, std::min<std::size_t>(entries_.size(), zip::in_end64));
  put32(end, narrow(directory_size));
  put32(end, narrow(directory_offset));
  put16(end, 0);
  write(end);
}

}  // namespace accelerant::format
