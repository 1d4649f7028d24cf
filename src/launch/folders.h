// Folders for the files of ranks.
#pragma once

#include <string>

#include "accelerant/core/detail/own_process.h"

namespace accelerant::launch {

// Creates the folder and its parents. Throws Error if it cannot be created or written to.
void make_writable_folders(const std::string& path);

// Creates a folder in an existing one. False if the name is taken; throws Error if anything else
// prevents it.
bool make_new_folder(const std::string& path);

// A new folder in TMPDIR that only this user can enter.
std::string make_temporary_folder();

// Removes it with everything in it; it may be gone. Throws Error and removes nothing if somebody
// else has taken the name.
void remove_temporary_folder(const std::string& path);

// A new folder in TMPDIR, removed with everything in it by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

  // Creates it again if it is gone: a machine may clean its temporary files while a training of
  // weeks runs. Throws Error if somebody else has taken the name, which they could read.
  void restore() const;

 private:
  std::string path_;
  accelerant::detail::OwnProcess process_;
};

}  // namespace accelerant::launch
