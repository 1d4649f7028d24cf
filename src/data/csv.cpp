#include "accelerant/data/csv.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "accelerant/core/error.h"
#include "data/csv_numbers.h"
#include "data/csv_records.h"
#include "data/describe.h"
#include "data/growing_array.h"

namespace accelerant::data {
namespace {

// Calls f with a value of the C++ type; false for a type that tables cannot have.
template <class F>
bool with_number_type(at::ScalarType type, F&& f) {
  switch (type) {
    case at::kFloat:
      f(float{});
      return true;
    case at::kDouble:
      f(double{});
      return true;
    case at::kLong:
      f(int64_t{});
      return true;
    case at::kInt:
      f(int32_t{});
      return true;
    case at::kShort:
      f(int16_t{});
      return true;
    case at::kChar:
      f(int8_t{});
      return true;
    case at::kByte:
      f(uint8_t{});
      return true;
    default:
      return false;
  }
}

void check_options(const CsvOptions& options) {
  const char delimiter = options.delimiter;
  const bool in_numbers = (delimiter >= '0' && delimiter <= '9') ||
                          (delimiter >= 'a' && delimiter <= 'z') ||
                          (delimiter >= 'A' && delimiter <= 'Z');
  constexpr std::string_view with_a_meaning("+-.\"\r\n\0", 7);
  if (in_numbers || with_a_meaning.find(delimiter) != std::string_view::npos) {
    throw Error(ErrorDetails{.problem = "read_csv: this delimiter cannot separate numbers",
                             .expected = "one like ',', ';', '|', ' ' or '\\t'",
                             .got = c10::str("character ", static_cast<int>(delimiter))});
  }
  if (!with_number_type(options.dtype, [](auto) {})) {
    throw Error(ErrorDetails{.problem = "read_csv: tables of this type cannot be read",
                             .expected = "float32, float64, int64, int32, int16, int8 or uint8",
                             .got = describe(options.dtype),
                             .hint = "read float32 and convert"});
  }
  if (options.missing == CsvMissing::nan && !c10::isFloatingType(options.dtype)) {
    throw Error(ErrorDetails{.problem = "read_csv: missing = nan needs a floating-point type",
                             .expected = {},
                             .got = describe(options.dtype)});
  }
}

// Reads one table: the header first, then the rows.
class TableReader {
 public:
  TableReader(const std::string& path, const CsvOptions& options)
      : path_(path), options_(options), records_(path, options.delimiter) {}

  CsvTable read() {
    has_record_ = records_.next();
    if (!has_record_) throw Error(path_ + ": is empty: there is not a single line of values");
    width_ = records_.fields().size();
    const bool has_header = first_record_is_header();
    if (has_header) {
      for (const CsvField& field : records_.fields()) header_.push_back(field.unescaped());
      has_record_ = records_.next();
    }
    select_columns();

    CsvTable table;
    with_number_type(options_.dtype, [&](auto zero) { read_rows(zero); });
    const auto columns = static_cast<int64_t>(selected_.size());
    table.values = values_.into_tensor({rows_, columns}, options_.dtype);
    if (has_header) {
      for (const std::size_t column : selected_) table.names.push_back(header_[column]);
    }
    return table;
  }

 private:
  bool is_missing(const CsvField& field) const {
    if (field.text.empty()) return true;
    const auto& marks = options_.missing_marks;
    return !marks.empty() && std::find(marks.begin(), marks.end(), field.text) != marks.end();
  }

  bool first_record_is_header() const {
    if (options_.header != CsvHeader::automatic) return options_.header == CsvHeader::yes;
    std::optional<std::size_t> number;
    std::optional<std::size_t> text;
    for (std::size_t i = 0; i < width_; ++i) {
      const CsvField& field = records_.fields()[i];
      double ignored = 0;
      if (is_missing(field)) continue;
      const bool is_number = parse_number(field.text, ignored) != NumberResult::not_a_number;
      (is_number ? number : text) = i;
    }
    if (number && text) {
      records_.fail(c10::str("this may be a header or values: column ", *number + 1,
                             " is a number, column ", *text + 1, " (",
                             shown(records_.fields()[*text].unescaped()),
                             ") is not; say which with header = yes or no"));
    }
    return text.has_value();
  }

  void select_columns() {
    if (options_.columns.empty()) {
      for (std::size_t i = 0; i < width_; ++i) selected_.push_back(i);
    }
    for (const CsvColumn& column : options_.columns) {
      if (const auto* const name = std::get_if<std::string>(&column)) {
        selected_.push_back(column_named(*name));
      } else {
        selected_.push_back(column_at(std::get<int64_t>(column)));
      }
    }
  }

  std::size_t column_named(const std::string& name) const {
    const auto found = std::find(header_.begin(), header_.end(), name);
    if (found == header_.end()) {
      throw Error(ErrorDetails{
          .problem = path_ + ": there is no column named " + shown(name),
          .expected = header_.empty() ? "" : "one of '" + c10::Join("', '", header_) + "'",
          .got = {},
          .hint =
              header_.empty() ? "the file has no header: name columns by their place from 0" : ""});
    }
    if (std::find(found + 1, header_.end(), name) != header_.end()) {
      throw Error(path_ + ": several columns are named " + shown(name) +
                  "; name the column by its place from 0");
    }
    return static_cast<std::size_t>(found - header_.begin());
  }

  std::size_t column_at(int64_t place) const {
    if (place >= 0 && static_cast<std::size_t>(place) < width_) {
      return static_cast<std::size_t>(place);
    }
    throw Error(ErrorDetails{.problem = path_ + ": there is no such column",
                             .expected = c10::str("0 to ", width_ - 1),
                             .got = std::to_string(place)});
  }

  template <class Number>
  void read_rows(Number) {
    const std::size_t row_bytes = selected_.size() * sizeof(Number);
    for (; has_record_; has_record_ = records_.next(), ++rows_) {
      const auto& fields = records_.fields();
      if (fields.size() != width_) {
        records_.fail(
            c10::str("expected ", width_, " fields as in the first line, got ", fields.size()));
      }
      auto* next = reinterpret_cast<Number*>(values_.append(row_bytes));
      for (const std::size_t column : selected_) *next++ = number_in<Number>(column);
    }
  }

  template <class Number>
  Number number_in(std::size_t column) const {
    const CsvField& field = records_.fields()[column];
    if (is_missing(field)) {
      if (options_.missing == CsvMissing::nan) return std::numeric_limits<Number>::quiet_NaN();
      fail_at(column, "the value is missing; missing = nan would allow that");
    }
    Number value{};
    const NumberResult result = parse_number(field.text, value);
    if (result == NumberResult::out_of_range) {
      fail_at(column,
              c10::str(shown(field.text), " is out of the range of ", describe(options_.dtype)));
    }
    if (result == NumberResult::not_a_number) {
      fail_at(column, c10::str(shown(field.unescaped()), " is no ",
                               std::integral<Number> ? "whole number" : "number"));
    }
    return value;
  }

  [[noreturn]] void fail_at(std::size_t column, const std::string& what) const {
    const std::string name = header_.empty() ? "" : " (" + shown(header_[column]) + ")";
    records_.fail(c10::str("column ", column + 1, name, ": ", what));
  }

  std::string path_;
  const CsvOptions& options_;
  CsvRecords records_;
  bool has_record_ = false;
  std::size_t width_ = 0;  // fields in every line
  std::vector<std::string> header_;
  std::vector<std::size_t> selected_;
  GrowingArray values_;
  int64_t rows_ = 0;
};

}  // namespace

CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  check_options(options);
  return TableReader(path, options).read();
}

}  // namespace accelerant::data
