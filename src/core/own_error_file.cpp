#include "core/own_error_file.h"

#include <unistd.h>

#include <cstdlib>

namespace accelerant {

std::optional<std::string> own_error_file() {
  constexpr const char* owner_variable = "ACCELERANT_ERROR_FILE_OWNER";
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr) return std::nullopt;
  const std::string file = path;
  const std::string self = std::to_string(::getpid()) + ":" + file;
  const char* const value = std::getenv(owner_variable);
  const std::string owner = value == nullptr ? "" : value;
  if (owner == self) return file;
  // Else of another file: of a process that has started a launcher.
  if (!owner.empty() && owner.substr(owner.find(':') + 1) == file) return std::nullopt;
  ::setenv(owner_variable, self.c_str(), /*overwrite=*/1);
  return file;
}

}  // namespace accelerant
