// A folder for the files of one snippet, removed at its end.
#pragma once

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

struct TemporaryFolder {
  std::string path = "/tmp/accelerant-docs-XXXXXX";
  TemporaryFolder() {
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no temporary folder");
  }
  ~TemporaryFolder() {
    if (std::system(("rm -r '" + path + "'").c_str()) != 0) std::cerr << path << " is left\n";
  }
};
