// An option among the arguments of an example, which are otherwise known by their places.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

namespace examples {

// The value of `name VALUE`, both of which are taken out of the arguments; empty if it is not
// there.
inline std::string take_option(int& argc, char** argv, const std::string& name) {
  char** const end = argv + argc;
  char** const found = std::find(argv + 1, end, name);
  if (found == end) return {};
  if (found + 1 == end) throw std::invalid_argument(name + " needs a value");
  std::string value = found[1];
  std::move(found + 2, end, found);
  argc -= 2;
  return value;
}

}  // namespace examples
