// The one exception type of Accelerant.
//
// An Error says what went wrong, what was expected, what was got and what to do about it. Where a
// situation has a fixed text in PyTorch (for example calling step() twice), the message is that
// text, so that searching for it finds PyTorch's documentation.
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

  // The message becomes "problem: expected X, got Y; hint".
  explicit Error(const ErrorDetails& details);
};

}  // namespace accelerant
