// Folders and files, by POSIX calls only: programs that link libtorch link this too, and CUDA
// builds of libtorch export parts of an older std::filesystem.
//
// What fails throws an Error that names the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace accelerant {

// "problem: got <the system's reason>; <what to do about it, where that is known>".
[[noreturn]] void throw_system_error(const std::string& problem, int error_number);

// A symbolic link is a path that exists, wherever it leads; as a folder or a file it is what it
// leads to.
bool path_exists(const std::string& path);
bool is_link(const std::string& path);
bool is_folder(const std::string& path);

// In bytes; none where there is no file, or what is there is not a plain file.
std::optional<std::uint64_t> size_of_file(const std::string& path);

// "a/b": a path in a folder.
std::string join_path(const std::string& folder, const std::string& name);

// The part before the last slash, "." or "/" where there is none; and the part behind it.
std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);

// The names in a folder, without "." and "..", in alphabetical order.
std::vector<std::string> entries_of(const std::string& folder);

// With all folders above it, and so that new ones survive a crash of the machine. One that is there
// already is fine.
void make_folders(const std::string& path);

// One that is there already is an Error.
void make_folder(const std::string& path);

// Atomic; what has the new name already is replaced, but a folder must be empty for that.
void rename_path(const std::string& from, const std::string& to);

// Atomic: each gets the other's name. False, and nothing is done, on systems and disks that cannot
// do it.
bool exchange_paths(const std::string& one, const std::string& other);

// What is not there is fine. Symbolic links are removed, not followed.
void remove_file(const std::string& path);
void remove_tree(const std::string& path);

// Makes what was created, renamed and removed in the folder survive a crash of the machine.
void sync_folder(const std::string& path);

// All bytes, to an open file; `path` is for the Error.
void write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path);

// Waits until what was written is on the disk. False if it is not, with errno.
bool sync_fd(int fd);

// The whole of a plain file. One above `limit` bytes is an Error, before it is read.
std::string read_file(const std::string& path, std::size_t limit);

}  // namespace accelerant
