// Opens files for reading, whatever a path may lead to.
#pragma once

#include <cstdint>
#include <string>

#include "core/fd.h"

namespace accelerant {

struct RegularFile {
  Fd fd = {};
  std::uint64_t size = 0;  // when it was opened, in bytes
};

// Opens a regular file, or a symbolic link to one. Never waits, as opening a pipe does until
// somebody writes to it. Throws Error for a folder, pipe, socket or device, and for what cannot be
// opened: "<path><failure>: <the system's reason>".
RegularFile open_regular_file(const std::string& path,
                              const std::string& failure = " cannot be read");

}  // namespace accelerant
