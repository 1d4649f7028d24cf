#include "meet/store_table.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace {

using accelerant::meet::StoreTable;

TEST(StoreTableTest, Values) {
  StoreTable table;
  table.set("a", "1");
  table.append("a", "2");
  table.append("b", "3");
  EXPECT_EQ(table.get("a"), "12");
  EXPECT_EQ(table.get("b"), "3");
  EXPECT_EQ(table.first_missing({"a", "b"}), nullptr);
  EXPECT_EQ(*table.first_missing({"a", "c", "d"}), "c");
  EXPECT_TRUE(table.remove("a"));
  EXPECT_FALSE(table.remove("a"));
  EXPECT_EQ(table.size(), 1U);
}

TEST(StoreTableTest, Numbers) {
  StoreTable table;
  EXPECT_EQ(table.add("n", 5), 5);
  EXPECT_EQ(table.add("n", -7), -2);
  EXPECT_EQ(table.get("n"), "-2");
  table.set("text", "5 apples");
  EXPECT_THROW(table.add("text", 1), std::runtime_error);
  table.set("n", "9223372036854775807");
  EXPECT_EQ(table.add("n", 1), std::numeric_limits<int64_t>::min());
}

TEST(StoreTableTest, CompareAndSet) {
  StoreTable table;
  EXPECT_EQ(table.compare_set("a", "old", "new"), "old");
  EXPECT_FALSE(table.has("a"));
  EXPECT_EQ(table.compare_set("a", "", "new"), "new");
  EXPECT_EQ(table.compare_set("a", "", "newer"), "new");
  EXPECT_EQ(table.compare_set("a", "new", "newer"), "newer");
}

}  // namespace
