// The arguments of an example: most are known by their places, some by a name.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace examples {

// A command line that makes no sense ends the program with one line and exit code 2.
[[noreturn]] inline void refuse_arguments(const std::string& problem) {
  std::fprintf(stderr, "error: %s\n", problem.c_str());
  std::exit(2);
}

// The value of `name VALUE`, which is taken out of the arguments; `otherwise` if it is not there.
inline std::string take_option(int& argc, char** argv, const std::string& name,
                               const std::string& otherwise = {}) {
  char** const end = argv + argc;
  char** const found = std::find(argv + 1, end, name);
  if (found == end) return otherwise;
  if (found + 1 == end) refuse_arguments(name + " needs a value");
  std::string value = found[1];
  std::move(found + 2, end, found);
  argc -= 2;
  return value;
}

// The argument at that place, 1 being the first; `otherwise` if there are fewer.
inline std::string text_at(int place, int argc, char** argv, const std::string& otherwise) {
  return place < argc ? argv[place] : otherwise;
}

// The same for a whole number above 0.
inline int64_t number_at(int place, int argc, char** argv, int64_t otherwise) {
  if (place >= argc) return otherwise;
  const std::string_view text = argv[place];
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    refuse_arguments("argument " + std::to_string(place) +
                     ": expected a whole number above 0, got " + std::string(text));
  }
  return number;
}

}  // namespace examples
