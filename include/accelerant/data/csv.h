// Reads tables of numbers from CSV files.
//
//   CsvTable table = read_csv("housing.csv", {.columns = {"rooms", "age", 5}});
//   table.values;    // float32 [rows, 3] on the CPU
//   table.names;     // {"rooms", "age", "price"}
//
// Fields may be quoted ("1.5", "a ""b"", c"), lines end in LF or CRLF, spaces around a field, blank
// lines and a UTF-8 byte order mark do not count. Files may be gzip. Numbers are read independently
// of the locale, rounded correctly, and "nan" and "inf" are numbers too. The file is read in pieces:
// memory holds the result and little more.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace accelerant::data {

// A column by the name in the header, or by its place from 0.
struct CsvColumn : std::variant<std::string, int64_t> {
  CsvColumn(std::string name) : variant(std::move(name)) {}
  CsvColumn(const char* name) : variant(std::string(name)) {}
  CsvColumn(std::integral auto place) : variant(static_cast<int64_t>(place)) {}
};

enum class CsvHeader {
  automatic,  // a first line without any number is a header; one with some is an Error
  yes,
  no,
};

enum class CsvMissing {
  error,
  nan,  // for floating-point types only
};

struct CsvOptions {
  // What separates fields: one character that occurs in no number, for example ',', ';' or '\t'.
  char delimiter = ',';

  // Whether the first line names the columns.
  CsvHeader header = CsvHeader::automatic;

  // The type of the result: float32 (default), float64, int64, int32, int16, int8 or uint8. Integer
  // types take whole numbers only.
  at::ScalarType dtype = at::kFloat;

  // The columns to read, in this order; others may hold text. Default: all.
  std::vector<CsvColumn> columns = {};

  // What to do with an empty field.
  CsvMissing missing = CsvMissing::error;

  // Texts that count as an empty field too, for example {"NA", "?"}.
  std::vector<std::string> missing_marks = {};
};

struct CsvTable {
  at::Tensor values;               // [rows, columns] on the CPU, owns its memory
  std::vector<std::string> names;  // of the columns read; empty without a header
};

// Throws Error that names the file, the line and the column when the file cannot be read, is empty,
// has lines of different length, an unfinished quote, a field that is no number or does not fit the
// type, or lacks a column.
CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace accelerant::data
