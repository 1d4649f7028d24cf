// Folders for the files of ranks.
#pragma once

#include <string>

namespace accelerant::launch {

// Makes the folder and those above it. A folder that cannot be made or written to is an Error.
void make_writable_folders(const std::string& path);

// Makes a folder in one that exists. False if there is something of this name already; whatever
// else prevents it is an Error.
bool make_new_folder(const std::string& path);

// A new folder in TMPDIR.
std::string make_temporary_folder();

// A new folder in TMPDIR, gone with everything in it at the end.
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

}  // namespace accelerant::launch
