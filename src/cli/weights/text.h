// How the commands on weights show things.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "accelerant/track/progress_bar.h"
#include "cli/messages.h"

namespace accelerant::cli {

// "512 B", "1.2 GB"; in powers of 1000, as in --max-shard-size.
std::string size_text(std::uint64_t bytes);

// "1,234,567".
std::string count_text(std::uint64_t count);

// "1 file", "2,000 files".
std::string plural(std::uint64_t count, const std::string& noun);

// Rows in aligned columns.
class Table {
 public:
  // One letter for each column: 'l' aligns it to the left, 'r' to the right.
  explicit Table(std::string sides) : sides_(std::move(sides)) {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  // To stdout, each line after `indent`.
  void print(const std::string& indent = "") const;

 private:
  std::string sides_;
  std::vector<std::vector<std::string>> rows_;
};

// A progress bar on stderr for large files; nothing for small ones.
class ByteProgress {
 public:
  ByteProgress(const std::string& description, std::uint64_t total);

  void advance(std::uint64_t bytes);

 private:
  ProgressBar bar_;
  std::uint64_t done_ = 0;
};

// With how many threads to compare checksums.
int checking_threads();

// A UsageError unless something is at the path.
void require_path(const std::string& path);

}  // namespace accelerant::cli
