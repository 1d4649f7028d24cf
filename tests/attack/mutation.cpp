#include "attack/mutation.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "core/files.h"
#include "support/temp_folder.h"

namespace attack {
namespace {

constexpr std::size_t kPage = 4096;

void write(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) throw std::runtime_error(path + " cannot be written");
}

void remove_anything(const std::string& path) {
  struct stat found;
  if (::lstat(path.c_str(), &found) != 0) return;
  (S_ISDIR(found.st_mode) ? ::rmdir : ::unlink)(path.c_str());
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('/') + 1); }

void collect(const std::string& folder, const std::string& below, Files& files) {
  for (const std::string& entry : accelerant::entries_of(folder)) {
    const std::string path = folder + "/" + entry;
    if (accelerant::is_folder(path)) {
      collect(path, below + entry + "/", files);
    } else {
      files[below + entry] = TempFolder::content_of(path);
    }
  }
}

// A value somewhere in a JSON document.
nlohmann::json& any_value(nlohmann::json& document, std::mt19937& random) {
  nlohmann::json* at = &document;
  while (at->is_structured() && !at->empty()) {
    at = &*std::next(at->begin(), static_cast<std::ptrdiff_t>(random() % at->size()));
  }
  return *at;
}

// As an editor would leave it. The same document if it cannot be parsed or has no such place.
std::string edited(const std::string& text, std::mt19937& random) {
  nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded() || !document.is_structured() || document.empty()) return text;
  const auto step = static_cast<std::ptrdiff_t>(random() % document.size());
  switch (random() % 4) {
    case 0: {
      nlohmann::json& value = any_value(document, random);
      if (value.is_number_integer()) {
        value = value.get<std::int64_t>() + 1;
      } else if (value.is_boolean()) {
        value = !value.get<bool>();
      } else {
        value = 7;
      }
      break;
    }
    case 1:
      document.erase(std::next(document.begin(), step));
      break;
    case 2: {
      nlohmann::json& one = any_value(document, random);
      nlohmann::json& another = any_value(document, random);
      std::swap(one, another);
      break;
    }
    default:  // says the same
      return document.dump(random() % 2 == 0 ? -1 : 3);
  }
  return document.dump(1);
}

}  // namespace

Files files_in(const std::string& folder) {
  Files files;
  collect(folder, "", files);
  return files;
}

Mutation::Mutation(std::string folder, const Files& files, const Files& other, std::mt19937& random)
    : folder_(std::move(folder)), files_(files), other_(other), random_(random) {
  const std::size_t places = below(8) == 0 && files.size() > 6 ? 2 + below(2) : 1;
  while (names_.size() < places) {
    below(12) == 0 ? swap_two_files() : change_one_file();
  }
}

Mutation::~Mutation() {
  for (const std::string& name : names_) {
    remove_anything(path(name));
    write(path(name), files_.at(name));
  }
}

bool Mutation::removed(const std::string& name) const {
  return std::ranges::find(names_, name) != names_.end() && !accelerant::path_exists(path(name));
}

std::string Mutation::other_name(const std::string& than) {
  while (true) {
    const std::string& name =
        std::next(files_.begin(), static_cast<std::ptrdiff_t>(below(files_.size())))->first;
    if (name != than && std::ranges::find(names_, name) == names_.end()) return name;
  }
}

// Does nothing if the content stays the same.
void Mutation::put(const std::string& name, const std::string& content, const std::string& how) {
  if (content == files_.at(name)) return;
  write(path(name), content);
  text_ += how + " " + name + "; ";
  names_.push_back(name);
}

void Mutation::change_one_file() {
  const std::string name = other_name("");
  below(6) == 0 ? replace_by_something_else(name) : change_bytes(name);
}

void Mutation::change_bytes(const std::string& name) {
  std::string content = files_.at(name);
  const std::size_t at = below(content.size());
  const std::size_t some = 1 + below(16);
  const std::string place = " at " + std::to_string(at) + " of";
  switch (below(10)) {
    case 0:
      if (!content.empty()) content[at] = static_cast<char>(content[at] ^ (1 << below(8)));
      return put(name, content, "a flipped bit" + place);
    case 1:
      if (!content.empty()) content[at] = static_cast<char>(random_());
      return put(name, content, "another byte" + place);
    case 2:
      return put(name, content.substr(0, at), "the end" + place);
    case 3:
      return put(name, content + std::string(some, static_cast<char>(below(256))), "longer");
    case 4: {
      const std::size_t page = at / kPage * kPage;
      const std::size_t size = std::min(kPage, content.size() - page);
      return put(name, content.replace(page, size, size, '\0'),
                 "zeros in the page " + std::to_string(page) + " of");
    }
    case 5:
      return put(name, content.erase(at, some), "bytes missing" + place);
    case 6:
      return put(name, content.insert(at, content.substr(at, some)), "bytes doubled" + place);
    case 7: {
      // A sector of another file, or another version of the file.
      const std::string& source = files_.at(other_name(name));
      const std::size_t from = below(source.size());
      return put(name, content.replace(at, some, source.substr(from, some)), "other bytes" + place);
    }
    case 8: {
      const auto found = other_.find(name);
      if (found == other_.end()) return;
      return put(name, found->second, "the content of another one's");
    }
    default:
      if (!name.ends_with(".json")) return;
      return put(name, edited(content, random_), "an edit of");
  }
}

void Mutation::replace_by_something_else(const std::string& name) {
  const std::string target = path(name);
  const std::size_t kind = below(7);
  if (kind == 0) return put(name, "", "nothing in");
  if (kind == 1) return put(name, files_.at(other_name(name)), "the content of another file in");
  remove_anything(target);
  names_.push_back(name);
  if (kind == 2 && ::mkfifo(target.c_str(), 0600) == 0) {
    text_ += "a pipe instead of ";
  } else if (kind == 3 && ::mkdir(target.c_str(), 0700) == 0) {
    text_ += "a folder instead of ";
  } else if (kind == 4 && ::symlink(last_part(name).c_str(), target.c_str()) == 0) {
    text_ += "a link to itself instead of ";
  } else {
    text_ += "without ";
  }
  text_ += name + "; ";
}

void Mutation::swap_two_files() {
  const std::string one = other_name("");
  const std::string another = other_name(one);
  if (files_.at(one) == files_.at(another)) return;
  put(one, files_.at(another), "swapped");
  put(another, files_.at(one), "with");
}

}  // namespace attack
