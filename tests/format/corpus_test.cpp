// Runs the fuzzer's function on its corpus, also in builds without a fuzzer.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "support/temp_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> paths;
  DIR* const listing = opendir(folder.c_str());
  if (listing == nullptr) return paths;
  while (const dirent* const file = readdir(listing)) {
    if (file->d_name[0] != '.') paths.push_back(folder + "/" + file->d_name);
  }
  closedir(listing);
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(FuzzCorpusTest, Safetensors) {
  const std::vector<std::string> paths = files_in(ACCELERANT_CORPUS "/safetensors");
  ASSERT_GE(paths.size(), 30U);
  for (const std::string& path : paths) {
    SCOPED_TRACE(path);
    const std::string content = TempFolder::content_of(path);
    // A copy of the exact size, so that sanitizers see a read past the end.
    const std::vector<std::uint8_t> bytes(content.begin(), content.end());
    EXPECT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
  }
}

}  // namespace
