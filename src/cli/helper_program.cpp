#include "cli/helper_program.h"

#include <unistd.h>

#include <array>

namespace accelerant::cli {

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

}  // namespace accelerant::cli
