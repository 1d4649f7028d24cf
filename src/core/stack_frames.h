// The stack frames that libtorch appends to the texts of its exceptions:
//
//   The size of tensor a (2) must match the size of tensor b (3)
//   Exception raised from infer_size_impl at .../ExpandUtils.cpp:35 (most recent call first):
//   frame #0: c10::Error::Error(...) + 0x80 (0x7f... in libc10.so)
//   frame #1: ...
//
// They help to debug libtorch and bury the cause for everybody else. Python leaves them out unless
// TORCH_SHOW_CPP_STACKTRACES=1 is set, and so does Accelerant.
#pragma once

#include <string>
#include <string_view>

namespace accelerant {

// Whether the line, without its end, is one of those that the text above shows below the first.
bool is_stack_frame(std::string_view line);

// The text without such lines, and without white space at its end.
std::string without_stack_frames(std::string_view text);

// Whether TORCH_SHOW_CPP_STACKTRACES=1 asks for stack frames.
bool wants_stack_frames();

// The text without stack frames, unless they are asked for.
std::string error_text(std::string_view text);

}  // namespace accelerant
