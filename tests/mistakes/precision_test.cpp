// A precision that the CPU is slow in.
#include <gtest/gtest.h>

#include <accelerant/accelerator/accelerator.h>

#include "accelerator/warnings/slow_precision.h"
#include "mistakes/said.h"

namespace mistakes {
namespace {

using accelerant::Precision;
using accelerant::detail::why_slow;

constexpr const char* kOldCpu = " fpu sse2 avx2 f16c";
constexpr const char* kBf16Cpu = " fpu sse2 avx2 avx512f avx512_bf16";
constexpr const char* kNewCpu = " fpu avx512_bf16 amx_bf16 avx512_fp16";

TEST(Mistakes, APrecisionThatTheCpuIsSlowIn) {
  const std::string bf16 = why_slow(Precision::bf16, kOldCpu).value_or("");
  EXPECT_TRUE(contains(bf16, "no bf16 instructions"));
  EXPECT_TRUE(contains(bf16, ".mixed_precision = accelerant::Precision::no"));
  const std::string fp16 = why_slow(Precision::fp16, kBf16Cpu).value_or("");
  EXPECT_TRUE(contains(fp16, "no fp16 instructions"));
  EXPECT_TRUE(contains(fp16, "Precision::bf16, which this CPU computes fast"));
}

TEST(Mistakes, APrecisionThatTheCpuIsFastIn) {
  EXPECT_EQ(why_slow(Precision::no, kOldCpu), std::nullopt);
  EXPECT_EQ(why_slow(Precision::bf16, kBf16Cpu), std::nullopt);
  EXPECT_EQ(why_slow(Precision::fp16, kNewCpu), std::nullopt);
  EXPECT_EQ(why_slow(Precision::bf16, ""), std::nullopt);  // cannot be read
}

TEST(Mistakes, ThePrecisionIsLookedAtByTheAccelerator) {
  const auto options = [](bool warns) {
    return accelerant::AcceleratorOptions{
        .cpu = true, .mixed_precision = Precision::fp16, .warnings = {.slow_precision = warns}};
  };
  const bool is_slow =
      why_slow(Precision::fp16, accelerant::detail::cpu_instructions()).has_value();
  EXPECT_EQ(count(said_by([&] { accelerant::Accelerator{options(true)}; }), "will be slow"),
            is_slow ? 1 : 0);
  EXPECT_EQ(said_by([&] { accelerant::Accelerator{options(false)}; }), "");
}

}  // namespace
}  // namespace mistakes
