#include "launch/folders.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "accelerant/core/error.h"

// POSIX calls throughout: programs that link libtorch link this too, and CUDA builds of libtorch
// export parts of an older std::filesystem.

namespace accelerant::launch {
namespace {

[[noreturn]] void refuse(const std::string& path, int error) {
  throw Error(ErrorDetails{.problem = "cannot write to the folder " + path,
                           .got = std::strerror(error),
                           .hint = "name another one"});
}

int remove_entry(const char* path, const struct stat*, int, FTW*) {
  std::remove(path);
  return 0;
}

}  // namespace

void make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) refuse(folder, errno);
    if (end == std::string::npos) break;
  }
  struct stat file = {};
  if (::stat(path.c_str(), &file) != 0) refuse(path, errno);
  if (!S_ISDIR(file.st_mode)) refuse(path, ENOTDIR);
  if (::access(path.c_str(), W_OK | X_OK) != 0) refuse(path, errno);
}

bool make_new_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  if (errno != EEXIST) refuse(path, errno);
  return false;
}

std::string make_temporary_folder() {
  const char* root = std::getenv("TMPDIR");
  std::string path = std::string(root == nullptr || *root == '\0' ? "/tmp" : root);
  path += "/accelerant_XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) refuse(path, errno);
  return path;
}

TemporaryFolder::TemporaryFolder() : path_(make_temporary_folder()) {}

TemporaryFolder::~TemporaryFolder() {
  constexpr int kOpenFolders = 16;
  ::nftw(path_.c_str(), remove_entry, kOpenFolders, FTW_DEPTH | FTW_PHYS);
}

}  // namespace accelerant::launch
