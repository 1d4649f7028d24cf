// The main function of the GoogleTest programs.
#include <gtest/gtest.h>

#include "support/ranks.h"

#ifdef __SANITIZE_ADDRESS__
#include "accelerant/core/detail/own_process.h"

// Memory that only threads of its parent point to looks lost to a forked child.
extern "C" int __lsan_is_turned_off();  // NOLINT: the name that LeakSanitizer calls
extern "C" int __lsan_is_turned_off() { return accelerant::detail::forks() == 0 ? 0 : 1; }

// Sizes that no machine has are an error of the allocation, as without the sanitizer.
extern "C" const char* __asan_default_options();  // NOLINT
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace {

// What CTest takes for "skipped" (SKIP_RETURN_CODE in cmake/DiscoverSuites.cmake).
constexpr int kSkipped = 77;

bool all_were_skipped() {
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  return tests.skipped_test_count() > 0 && tests.successful_test_count() == 0;
}

}  // namespace

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  const int failure = RUN_ALL_TESTS();
  // The launcher takes any code but 0 for the failure of a rank.
  if (failure == 0 && all_were_skipped() && !rank_test::is_rank()) return kSkipped;
  return failure;
}
