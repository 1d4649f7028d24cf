#include "launch/folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <exception>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "core/files.h"

namespace accelerant::launch {
namespace {

[[noreturn]] void refuse_folder(const std::string& path, int error) {
  throw_system_error("The folder " + path + " cannot be written to", error);
}

// That it is what make_temporary_folder() makes.
void require_private(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) refuse_folder(path, errno);
  const bool is_private = S_ISDIR(status.st_mode) && (status.st_mode & 077) == 0;
  if (is_private && status.st_uid == ::geteuid()) return;
  throw Error(ErrorDetails{.problem = "The temporary folder " + path + " was replaced",
                           .expected = "a folder that only this user can enter",
                           .got = "one of somebody else, or another kind of file"});
}

}  // namespace

void make_writable_folders(const std::string& path) {
  make_folders(path);
  if (::access(path.c_str(), W_OK | X_OK) != 0) refuse_folder(path, errno);
}

bool make_new_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  if (errno != EEXIST) refuse_folder(path, errno);
  return false;
}

std::string make_temporary_folder() {
  const char* root = std::getenv("TMPDIR");
  std::string path = std::string(root == nullptr || *root == '\0' ? "/tmp" : root);
  path += "/accelerant_XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) refuse_folder(path, errno);
  return path;
}

void remove_temporary_folder(const std::string& path) {
  if (!path_exists(path)) return;
  require_private(path);
  remove_tree(path);
}

TemporaryFolder::TemporaryFolder() : path_(make_temporary_folder()) {}

void TemporaryFolder::restore() const {
  if (::mkdir(path_.c_str(), 0700) == 0) return;
  if (errno != EEXIST) refuse_folder(path_, errno);
  require_private(path_);
}

TemporaryFolder::~TemporaryFolder() {
  if (!process_.is_this_one()) return;
  try {
    remove_temporary_folder(path_);
  } catch (const std::exception& error) {
    log(LogLevel::warning, error.what());
  }
}

}  // namespace accelerant::launch
