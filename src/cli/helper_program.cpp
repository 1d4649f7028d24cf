#include "cli/helper_program.h"

#include <unistd.h>

#include <array>
#include <sstream>
#include <utility>
#include <vector>

#include "accelerant/launch/debug_launcher.h"
#include "core/texts.h"

namespace accelerant::cli {
namespace {

// From a line of ldd, as in "  libtorch.so => not found".
std::optional<std::string> missing_library_in(const std::string& line) {
  const std::size_t end = line.find(" => not found");
  const std::size_t begin = line.find_first_not_of(" \t");
  if (end == std::string::npos || begin >= end) return std::nullopt;
  return line.substr(begin, end - begin);
}

}  // namespace

std::optional<std::string> find_helper(const std::string& name) {
  std::array<char, 4096> program = {};
  const ssize_t size = ::readlink("/proc/self/exe", program.data(), program.size() - 1);
  if (size <= 0) return std::nullopt;
  std::string folder(program.data(), static_cast<size_t>(size));
  folder.erase(folder.rfind('/') + 1);
  for (const char* place : {"", "../libexec/accelerant/"}) {
    const std::string path = folder + place + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

std::optional<std::string> loading_problem(const std::string& helper) {
  // With this variable the loader lists the libraries, as ldd does, and starts nothing.
  const auto listing = launch::run_ranks(
      {.command = {helper}, .num_processes = 1, .environment = {{"LD_TRACE_LOADED_OBJECTS", "1"}}});
  std::vector<std::string> missing;
  std::istringstream lines(listing.ranks[0].out);
  for (std::string line; std::getline(lines, line);) {
    if (auto library = missing_library_in(line)) missing.push_back(std::move(*library));
  }
  if (missing.empty()) return std::nullopt;
  return list_text(missing, 3) + (missing.size() == 1 ? " was" : " were") +
         " not found; set LD_LIBRARY_PATH=<torch>/lib, where <torch> is the folder of libtorch " +
         ACCELERANT_TORCH_VERSION + " (Accelerant was built with the one in " +
         ACCELERANT_TORCH_FOLDER + ")";
}

}  // namespace accelerant::cli
