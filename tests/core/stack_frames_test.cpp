#include "core/stack_frames.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace accelerant {
namespace {

constexpr const char* kLibtorchText =
    "The size of tensor a (2) must match the size of tensor b (3)\n"
    "Exception raised from infer_size_impl at /pytorch/ExpandUtils.cpp:35 (most recent call "
    "first):\n"
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f in libc10.so)\n"
    "frame #1: <unknown function> + 0x29d90 (0x7f in libc.so.6)\n\n";

TEST(StackFrames, AreLeftOut) {
  EXPECT_EQ(without_stack_frames(kLibtorchText),
            "The size of tensor a (2) must match the size of tensor b (3)");
  EXPECT_EQ(without_stack_frames("bad\nC++ CapturedTraceback:\n#4 c10::f() from Exception.cpp:0\n"
                                 "#5 at::g() from ??:0\nafter"),
            "bad\nafter");
}

TEST(StackFrames, OtherLinesStay) {
  for (const char* text : {"frame # is missing", "#1 in the list", "Exception raised from nowhere",
                           "one\n\ntwo", ""}) {
    EXPECT_EQ(without_stack_frames(text), text);
  }
}

TEST(StackFrames, AreShownIfAskedFor) {
  ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  EXPECT_EQ(error_text(kLibtorchText), kLibtorchText);
  ::unsetenv("TORCH_SHOW_CPP_STACKTRACES");
  EXPECT_EQ(error_text(kLibtorchText), without_stack_frames(kLibtorchText));
}

}  // namespace
}  // namespace accelerant
