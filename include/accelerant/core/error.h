// The one exception type of Accelerant.
//
// An Error says what went wrong, what was expected, what was got and what to do about it. Where a
// situation has a fixed text in PyTorch (for example calling step() twice), the first line of the
// message is that text, so that searching for it finds PyTorch's documentation, and a second line
// says what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace accelerant {

struct ErrorDetails {
  std::string problem = {};   // what went wrong, one sentence without a final full stop
  std::string expected = {};  // what would have been right; may be empty
  std::string got = {};       // what was there instead; may be empty
  std::string hint = {};      // what to do about it; may be empty
};

class Error : public std::runtime_error {
 public:
  // `message` is used as it is.
  explicit Error(const std::string& message);

  // PyTorch's text, and on the next line what was got or what to do.
  Error(const std::string& pytorch_text, const std::string& hint);

  // The message becomes "problem: expected X, got Y; hint".
  explicit Error(const ErrorDetails& details);
};

}  // namespace accelerant
