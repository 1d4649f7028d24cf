// How the commands on weights show things.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerant/track/progress_bar.h"

namespace accelerant::cli {

// "512 B", "1.2 GB"; powers of 1000, as --max-shard-size has them.
std::string size_text(std::uint64_t bytes);

// "1,234,567".
std::string count_text(std::uint64_t count);

// Text of a file, fit for a terminal: control characters, and what is no UTF-8, become "\x1b".
std::string printable(std::string_view text);

// Rows in aligned columns, which are one or more spaces apart.
class Table {
 public:
  // One letter for each column: 'l' or 'r' for the side at which its text stands.
  explicit Table(std::string sides) : sides_(std::move(sides)) {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  // To stdout, each line after `indent`.
  void print(const std::string& indent = "") const;

 private:
  std::string sides_;
  std::vector<std::vector<std::string>> rows_;
};

// A bar on stderr for jobs of many bytes; small ones show nothing.
class ByteProgress {
 public:
  ByteProgress(const std::string& description, std::uint64_t total);

  void advance(std::uint64_t bytes);

 private:
  ProgressBar bar_;
  std::uint64_t done_ = 0;
};

// What a user did wrong, as opposed to what is wrong with a file.
struct UsageError {
  std::string message = {};
};

// A UsageError unless something is at the path.
void require_path(const std::string& path);

// "accelerant COMMAND: message", on stderr, fit for a terminal.
void show_error(const char* command, const std::string& message);

// Runs the work of a command. Returns its exit code; 1 after an exception and 2 after a UsageError,
// which are shown.
template <class Work>
int run_work(const char* command, const Work& work) {
  try {
    return work();
  } catch (const UsageError& error) {
    show_error(command, error.message);
    return 2;
  } catch (const std::exception& error) {
    show_error(command, error.what());
    return 1;
  }
}

}  // namespace accelerant::cli
