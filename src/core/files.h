// Folders and files through POSIX calls only. CUDA builds of libtorch export parts of an older
// std::filesystem, and programs that link this also link libtorch.
//
// Failures throw a SystemError that names the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerant/core/error.h"

namespace accelerant {

// An Error that says "problem: <the system's reason>; <what to do about it, if known>".
class SystemError : public Error {
 public:
  SystemError(const std::string& problem, int error_number);

  int number() const { return number_; }  // the errno

  // Whether the disk, or this user's share of it, is full.
  bool is_full_disk() const;

 private:
  int number_;
};

// Throws one.
[[noreturn]] void throw_system_error(const std::string& problem, int error_number);

// What is at a path. Nothing is only what the system calls so: the name or a folder above it does
// not exist (ENOENT), or what stands above it is a file (ENOTDIR), in which no name can exist. Any
// other failure throws: a folder of another user or a network disk that is gone may well hold
// something, and a training that took it for empty would begin anew.
//
// A symbolic link exists even if its target does not; is_folder() and size_of_file() follow it.
bool path_exists(const std::string& path);
bool is_link(const std::string& path);
bool is_folder(const std::string& path);

// In bytes; empty if the path does not exist or is not a regular file.
std::optional<std::uint64_t> size_of_file(const std::string& path);

// "a/b": a path inside a folder.
std::string join_path(const std::string& folder, const std::string& name);

// The part before the last slash ("." or "/" if there is none), and the part after it.
std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);

// The names in a folder, without "." and "..", in alphabetical order.
std::vector<std::string> entries_of(const std::string& folder);

// Creates the folder and its parents, durably: they survive a crash of the machine. Existing
// folders are fine.
void make_folders(const std::string& path);

// Throws Error if the path already exists.
void make_folder(const std::string& path);

// Atomic. Replaces an existing file or empty folder of the new name.
void rename_path(const std::string& from, const std::string& to);

// Swaps two paths atomically. Returns false and does nothing on systems and file systems that
// cannot do it.
bool exchange_paths(const std::string& one, const std::string& other);

// A missing path is fine. Symbolic links are removed, not followed, also if somebody replaces parts
// of the tree meanwhile.
void remove_file(const std::string& path);
void remove_tree(const std::string& path);

// Makes creations, renames and removals in the folder survive a crash of the machine.
void sync_folder(const std::string& path);

// Writes all bytes to an open file; `path` is only for the Error.
void write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path);

// Waits until the written data is on the disk. Returns false, with errno set, on failure.
bool sync_fd(int fd);

// The content of a regular file. Throws Error, before reading, if it has more than `limit` bytes.
std::string read_file(const std::string& path, std::size_t limit);

}  // namespace accelerant
