// Files and folders, by POSIX calls only: CUDA builds of libtorch export parts of an older
// std::filesystem, and calls of the demo would end there.
#pragma once

#include <string>

namespace demo {

// The path of the running program, and of the folder it is in.
std::string this_program();
std::string folder_of_this_program();

bool exists(const std::string& path);

// Whether the project has a checkpoint that is complete.
bool has_checkpoint(const std::string& project);

std::string content_of(const std::string& path);

// A folder that goes away with the object, with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace demo
