// Runs the fuzzer's function on its corpus, so that bugs it once found stay fixed, also in builds
// without a fuzzer.
#include <accelerant/core/error.h>
#include <dirent.h>
#include <format/torch_archive.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/temp_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

namespace {

std::vector<std::string> corpus() {
  const std::string folder = ACCELERANT_FUZZ_CORPUS;
  std::vector<std::string> paths;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(folder.c_str()), closedir);
  if (listing == nullptr) return paths;
  while (const dirent* const entry = readdir(listing.get())) {
    if (entry->d_name[0] != '.') paths.push_back(folder + "/" + entry->d_name);
  }
  return paths;
}

TEST(TorchArchiveCorpus, RunsThroughTheFuzzersFunction) {
  const std::vector<std::string> paths = corpus();
  ASSERT_GE(paths.size(), 10U);
  for (const std::string& path : paths) {
    SCOPED_TRACE(path);
    const std::string content = TempFolder::content_of(path);
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content.data()), content.size()),
        0);
    try {  // also as a file
      accelerant::format::kind_of_archive(path);
      accelerant::format::read_torch_archive(path);
    } catch (const accelerant::Error&) {
    }
  }
}

// At every byte of every corpus file: flips a bit, cuts the file off there, and removes the byte.
TEST(TorchArchiveCorpus, SurvivesDamageAtEveryByte) {
  const auto run = [](const std::string& content) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content.data()), content.size());
  };
  for (const std::string& path : corpus()) {
    SCOPED_TRACE(path);
    const std::string content = TempFolder::content_of(path);
    for (std::size_t i = 0; i < content.size(); ++i) {
      std::string damaged = content;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
      run(damaged);
      run(content.substr(0, i));
      run(content.substr(0, i) + content.substr(i + 1));
    }
  }
}

}  // namespace
