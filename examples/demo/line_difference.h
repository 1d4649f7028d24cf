// How many lines of code differ between the demo's two loops.
#pragma once

#include <string_view>

namespace demo {

struct LineDifference {
  int lines = 0;    // of the first text
  int removed = 0;  // lines of the first text that the second does not have
  int added = 0;    // lines of the second text that the first does not have
};

// Blank lines, lines of comments and indentation do not count.
LineDifference count_line_difference(std::string_view before, std::string_view after);

// Between plain_loop.cpp and accelerant_loop.cpp, as they were when the demo was built.
LineDifference difference_between_loops();

}  // namespace demo
