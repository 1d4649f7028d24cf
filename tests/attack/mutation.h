// Damages the files of a folder, as a bad disk, a bad copy or a careless hand would.
#pragma once

#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace attack {

// Names below a folder, and content.
using Files = std::map<std::string, std::string>;

Files files_in(const std::string& folder);

// One mutation of a folder, and the way back.
class Mutation {
 public:
  // Picks one at random and makes it, in one to three places. `other` has files to confuse these
  // with: those of another folder of the same kind.
  Mutation(std::string folder, const Files& files, const Files& other, std::mt19937& random);

  // Restores the folder.
  ~Mutation();
  Mutation(const Mutation&) = delete;
  Mutation& operator=(const Mutation&) = delete;

  // Such as "zeros in a page of model.safetensors".
  const std::string& text() const { return text_; }

  // The names of the files that it changed.
  const std::vector<std::string>& names() const { return names_; }

  // Whether it removed that file, and did nothing else to it.
  bool removed(const std::string& name) const;

 private:
  void change_one_file();
  void change_bytes(const std::string& name);
  void replace_by_something_else(const std::string& name);
  void swap_two_files();
  std::string other_name(const std::string& than);
  void put(const std::string& name, const std::string& content, const std::string& how);
  std::size_t below(std::size_t count) { return count == 0 ? 0 : random_() % count; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  const Files& files_;
  const Files& other_;
  std::mt19937& random_;
  std::string text_ = {};
  std::vector<std::string> names_ = {};
};

}  // namespace attack
