#include "core/launch_contract.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/fd.h"

namespace accelerant {
namespace {

constexpr std::size_t kUsualColumns = 80;

// Up to `end`, which is taken off too.
std::string_view take_until(char end, std::string_view& text) {
  const std::string_view part = text.substr(0, text.find(end));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

}  // namespace

std::string launched_rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                           "PMIX_RANK", "SLURM_PROCID"}) {
    // The shell of salloc has SLURM_PROCID too, outside any job step.
    if (std::string_view(name) == "SLURM_PROCID" && std::getenv("SLURM_STEP_ID") == nullptr)
      continue;
    const char* const rank = std::getenv(name);
    if (rank != nullptr && *rank != '\0') return rank;
  }
  return "";
}

std::optional<std::string> own_error_file() {
  constexpr const char* owner_variable = "ACCELERANT_ERROR_FILE_OWNER";
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr) return std::nullopt;
  const std::string file = path;
  const std::string self = std::to_string(::getpid()) + ":" + file;
  const char* const value = std::getenv(owner_variable);
  const std::string owner = value == nullptr ? "" : value;
  if (owner == self) return file;
  // An owner of a different file is an ancestor that started a launcher: it does not count here.
  if (!owner.empty() && owner.substr(owner.find(':') + 1) == file) return std::nullopt;
  ::setenv(owner_variable, self.c_str(), /*overwrite=*/1);
  return file;
}

void mark_saving() noexcept {
  const char* const path = std::getenv(kSavingFileVariable);
  if (path == nullptr) return;
  const int file = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file >= 0) ::close(file);
}

std::optional<std::size_t> terminal_columns(int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

std::string terminal_entry(int pipe, int terminal) {
  struct stat file = {};
  if (::isatty(terminal) != 1 || ::fstat(pipe, &file) != 0) return "";
  std::array<char, 256> name = {};
  if (::ttyname_r(terminal, name.data(), name.size()) != 0) name[0] = '\0';
  return std::to_string(file.st_ino) + ":" +
         std::to_string(terminal_columns(terminal).value_or(kUsualColumns)) + ":" + name.data();
}

std::optional<std::size_t> columns_behind_launcher(int fd) {
  const char* const value = std::getenv(kTerminalVariable);
  struct stat file = {};
  if (value == nullptr || ::fstat(fd, &file) != 0 || !S_ISFIFO(file.st_mode)) return std::nullopt;
  for (std::string_view rest = value; !rest.empty();) {
    std::string_view entry = take_until(',', rest);
    if (take_until(':', entry) != std::to_string(file.st_ino)) continue;
    const std::string_view columns = take_until(':', entry);
    const Fd terminal(
        ::open(std::string(entry).c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    if (terminal.is_open()) {
      if (const auto now = terminal_columns(terminal.get())) return now;
    }
    std::size_t at_start = 0;
    std::from_chars(columns.data(), columns.data() + columns.size(), at_start);
    return at_start > 0 ? at_start : kUsualColumns;
  }
  return std::nullopt;
}

}  // namespace accelerant
