#include "accelerant/format/safetensors.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace {

using namespace accelerant::format;
using Shape = std::vector<std::int64_t>;

TEST(DTypeTest, NamesAndSizes) {
  const std::map<std::string, unsigned> known = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64},
  };
  ASSERT_EQ(known.size(), all_dtypes().size());
  for (const DType dtype : all_dtypes()) {
    const std::string name(dtype_name(dtype));
    ASSERT_TRUE(known.contains(name)) << name;
    EXPECT_EQ(dtype_bits(dtype), known.at(name)) << name;
    EXPECT_EQ(dtype_from_name(name), dtype) << name;
  }
  EXPECT_EQ(dtype_from_name("BF16"), DType::bf16);
  EXPECT_EQ(dtype_from_name("F8_E5M2FNUZ"), DType::f8_e5m2fnuz);
}

TEST(DTypeTest, OtherNamesAreNone) {
  for (const char* const name : {"", "f32", "F32 ", "C128", "F128", "FLOAT"}) {
    EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
  }
}

TEST(DTypeTest, ByteSizes) {
  EXPECT_EQ(byte_size(DType::f32, Shape{}), 4U);
  EXPECT_EQ(byte_size(DType::f32, Shape{2, 3}), 24U);
  EXPECT_EQ(byte_size(DType::f4, Shape{4}), 2U);
  EXPECT_EQ(byte_size(DType::f6_e2m3, Shape{2, 2}), 3U);
  EXPECT_EQ(byte_size(DType::c64, Shape{5, 0, 7}), 0U);
  EXPECT_EQ(byte_size(DType::f4, Shape{3, 0}), 0U);
}

TEST(DTypeTest, ShapesWithoutSize) {
  const auto problem_of = [](DType dtype, const Shape& shape) {
    SizeProblem problem{};
    EXPECT_EQ(byte_size(dtype, shape, &problem), std::nullopt);
    return problem;
  };
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(problem_of(DType::f4, {3}), SizeProblem::misaligned);
  EXPECT_EQ(problem_of(DType::f6_e3m2, {2}), SizeProblem::misaligned);
  EXPECT_EQ(problem_of(DType::u8, {-1}), SizeProblem::negative);
  EXPECT_EQ(problem_of(DType::u8, {largest, 3}), SizeProblem::overflow);
  EXPECT_EQ(problem_of(DType::u8, {largest}), SizeProblem::overflow);  // in bits
  for (const Shape& shape : {Shape{0, largest, largest}, Shape{largest, largest, 0}}) {
    EXPECT_EQ(problem_of(DType::u8, shape), SizeProblem::overflow);
  }
}

}  // namespace
