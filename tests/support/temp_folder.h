// A folder for the files of one test, removed afterwards.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

// Replaces std::filesystem: CUDA builds of libtorch export parts of an older version, which calls
// would then use.
inline void run_in_shell(const std::string& command) {
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = testing::TempDir() + "accelerant-test-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TempFolder() { run_in_shell("rm -rf '" + path_ + "'"); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  // The same, but as a gzip file.
  std::string write_gzip(const std::string& name, const std::string& content) const {
    const std::string plain = write(name + ".unpacked", content);
    run_in_shell("gzip -nc '" + plain + "' > '" + path(name) + "' && rm '" + plain + "'");
    return path(name);
  }

  static std::string content_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string path_;
};
