#include "data/csv_records.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>

#include "accelerant/core/error.h"

namespace accelerant::data {
namespace {

constexpr std::size_t first_buffer_size = std::size_t{1} << 18;
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
constexpr std::size_t none = std::string_view::npos;

}  // namespace

std::string CsvField::unescaped() const {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    result += text[i];
    if (quoted && text[i] == '"') ++i;  // the second of a pair
  }
  return result;
}

CsvRecords::CsvRecords(const std::string& path, char delimiter)
    : source_(path), delimiter_(delimiter), buffer_(first_buffer_size) {}

void CsvRecords::fail(const std::string& what) const {
  throw Error(c10::str(source_.path(), ", line ", record_line_, ": ", what));
}

bool CsvRecords::next() {
  std::string_view line;
  do {
    if (!next_line(line)) return false;
    if (lines_ == 1 && line.starts_with(byte_order_mark))
      line.remove_prefix(byte_order_mark.size());
  } while (trimmed(line).empty());
  record_line_ = lines_;
  fields_.clear();
  if (line.find('"') == none) {
    split_unquoted(line);
  } else {
    split_quoted(line);
  }
  return true;
}

// The next line without its end. It stays valid until the next call.
bool CsvRecords::next_line(std::string_view& line) {
  std::size_t searched = begin_;
  for (;;) {
    const char* const data = buffer_.data();
    const void* const found =
        end_ > searched ? std::memchr(data + searched, '\n', end_ - searched) : nullptr;
    if (found != nullptr || at_end_) {
      if (begin_ == end_) return false;
      const char* const line_end = found != nullptr ? static_cast<const char*>(found) : data + end_;
      line = {data + begin_, static_cast<std::size_t>(line_end - data) - begin_};
      begin_ += line.size() + (found != nullptr ? 1 : 0);
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++lines_;
      return true;
    }
    // No whole line is left: what there is goes to the front, and more is read behind it.
    std::memmove(buffer_.data(), data + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    searched = end_;
    if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
    const std::size_t room = buffer_.size() - end_;
    const std::size_t got = source_.read(buffer_.data() + end_, room);
    at_end_ = got < room;
    end_ += got;
  }
}

std::string_view CsvRecords::trimmed(std::string_view text) const {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

void CsvRecords::split_unquoted(std::string_view line) {
  for (;;) {
    const std::size_t delimiter = line.find(delimiter_);
    fields_.push_back({.text = trimmed(line.substr(0, delimiter)), .quoted = false});
    if (delimiter == none) return;
    line.remove_prefix(delimiter + 1);
  }
}

// Works on joined_, which may grow on the way; so the fields are views only at the end.
void CsvRecords::split_quoted(std::string_view line) {
  struct Span {
    std::size_t begin, end;
    bool quoted;
  };
  std::vector<Span> spans;
  joined_.assign(line);
  for (std::size_t position = 0;; ++position) {
    std::size_t begin = position;
    while (begin < joined_.size() && is_space(joined_[begin])) ++begin;
    if (begin < joined_.size() && joined_[begin] == '"') {
      const std::size_t end = find_closing_quote(begin + 1);
      spans.push_back({begin + 1, end, true});
      position = end + 1;
      while (position < joined_.size() && is_space(joined_[position])) ++position;
      if (position < joined_.size() && joined_[position] != delimiter_) {
        fail(c10::str("column ", spans.size(), ": there is text after the closing quote"));
      }
    } else {
      position = std::min(joined_.find(delimiter_, position), joined_.size());
      spans.push_back({begin, std::max(begin, position), false});
    }
    if (position >= joined_.size()) break;
  }
  const std::string_view record = joined_;
  for (const Span& span : spans) {
    const std::string_view text = record.substr(span.begin, span.end - span.begin);
    fields_.push_back({.text = span.quoted ? text : trimmed(text), .quoted = span.quoted});
  }
}

// The place of the quote that ends the field; adds lines to joined_ until there is one.
std::size_t CsvRecords::find_closing_quote(std::size_t begin) {
  const int64_t opened_at = lines_;
  for (std::size_t position = begin;;) {
    const std::size_t quote = joined_.find('"', position);
    if (quote == none) {
      position = joined_.size();
      std::string_view more;
      if (!next_line(more)) {
        record_line_ = opened_at;
        fail("a quoted field is not closed");
      }
      joined_ += '\n';
      joined_ += more;
    } else if (quote + 1 < joined_.size() && joined_[quote + 1] == '"') {
      position = quote + 2;
    } else {
      return quote;
    }
  }
}

}  // namespace accelerant::data
