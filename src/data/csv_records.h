// The records of a CSV file, one after the other, as texts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_source.h"

namespace accelerant::data {

struct CsvField {
  std::string_view text;  // without spaces around and outer quotes; inner quotes are still doubled
  bool quoted = false;

  // The text as it is meant: inner quotes single.
  std::string unescaped() const;
};

class CsvRecords {
 public:
  CsvRecords(const std::string& path, char delimiter);

  // Reads the next record that is not blank; false at the end of the file.
  bool next();

  // The fields of the record; they stay valid until next() is called.
  const std::vector<CsvField>& fields() const { return fields_; }

  // Throws Error about the record: "<path>, line 7: <what>".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  bool next_line(std::string_view& line);
  bool is_space(char c) const { return (c == ' ' || c == '\t') && c != delimiter_; }
  std::string_view trimmed(std::string_view text) const;
  void split_unquoted(std::string_view line);
  void split_quoted(std::string_view line);
  std::size_t find_closing_quote(std::size_t begin);

  ByteSource source_;
  char delimiter_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of the bytes in buffer_ that are not used yet
  std::size_t end_ = 0;
  bool at_end_ = false;
  int64_t lines_ = 0;        // read so far
  int64_t record_line_ = 0;  // where the record begins
  std::string joined_;       // a record with quotes, which may go over several lines
  std::vector<CsvField> fields_;
};

}  // namespace accelerant::data
