#include "files.h"

#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <system_error>

namespace demo {
namespace {

int remove_entry(const char* path, const struct stat*, int, FTW*) { return std::remove(path); }

}  // namespace

std::string this_program() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  if (size < 0) throw std::system_error(errno, std::generic_category(), "/proc/self/exe");
  return {path, static_cast<std::size_t>(size)};
}

std::string folder_of_this_program() {
  const std::string program = this_program();
  return program.substr(0, program.rfind('/'));
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool has_checkpoint(const std::string& project) {
  const auto close = [](DIR* folder) { closedir(folder); };
  const std::unique_ptr<DIR, decltype(close)> folder(opendir((project + "/checkpoints").c_str()));
  if (!folder) return false;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with('.') && !name.ends_with(".tmp")) return true;
  }
  return false;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TemporaryFolder::TemporaryFolder() {
  const char* const parent = std::getenv("TMPDIR");
  std::string pattern =
      std::string(parent != nullptr ? parent : "/tmp") + "/accelerant-demo-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), pattern + " cannot be created");
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  constexpr int open_folders = 16;
  nftw(path_.c_str(), remove_entry, open_folders, FTW_DEPTH | FTW_PHYS);
}

}  // namespace demo
