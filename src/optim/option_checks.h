// Checks of the options of schedules, with uniform messages.
#pragma once

#include <c10/util/StringUtil.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "accelerant/core/error.h"

namespace accelerant::optim::detail {

[[noreturn]] inline void refuse_option(const char* kind, const char* option,
                                       const std::string& expected, const std::string& got,
                                       const std::string& hint = "") {
  throw Error(ErrorDetails{.problem = c10::str(kind, ": ", option, " is out of range"),
                           .expected = expected,
                           .got = got,
                           .hint = hint});
}

// Step numbers stay below 2^53: they are exact as double, and sums of a few cannot overflow.
inline void require_at_least(const char* kind, const char* option, int64_t value, int64_t least,
                             const std::string& hint = "") {
  constexpr int64_t kMost = int64_t{1} << 53;
  if (value >= least && value <= kMost) return;
  refuse_option(kind, option, c10::str(least, " to ", kMost), c10::str(value), hint);
}

inline void require_positive(const char* kind, const char* option, double value) {
  if (value > 0 && std::isfinite(value)) return;
  refuse_option(kind, option, "a finite number above 0", c10::str(value));
}

inline void require_not_negative(const char* kind, const char* option, double value) {
  if (value >= 0 && std::isfinite(value)) return;
  refuse_option(kind, option, "a finite number of at least 0", c10::str(value));
}

inline void require_part_of_one(const char* kind, const char* option, double value) {
  if (value >= 0 && value <= 1) return;
  refuse_option(kind, option, "0 to 1", c10::str(value));
}

}  // namespace accelerant::optim::detail
