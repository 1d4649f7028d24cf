#include "core/heap.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "support/sanitized.h"

namespace {

// Allocates, fills and frees as much memory as the gradients of a small network take. Returns how
// many new pages that needed.
int64_t pages_of_a_step() {
  constexpr size_t kBlock = 4 << 20;
  rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  std::vector<std::unique_ptr<char[]>> gradients;
  for (int i = 0; i < 8; ++i) {
    gradients.emplace_back(new char[kBlock]);
    std::memset(gradients.back().get(), i, kBlock);
  }
  gradients.clear();
  getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(Heap, KeepsFreedMemory) {
#ifndef __GLIBC__
  GTEST_SKIP() << "only glibc's malloc is told";
#endif
  if (is_sanitized) GTEST_SKIP() << "sanitizers bring a malloc of their own";
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(name) != nullptr) GTEST_SKIP() << name << " is set";
  }
  accelerant::keep_freed_memory();
  pages_of_a_step();
  EXPECT_LT(pages_of_a_step(), 100);
}

}  // namespace
