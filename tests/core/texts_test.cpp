#include "core/texts.h"

#include <gtest/gtest.h>

namespace {

using accelerant::counted;

TEST(Texts, CountsHaveTheRightPlural) {
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(2, "file"), "2 files");
}

}  // namespace
