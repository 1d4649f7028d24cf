// What a program is told when it makes a mistake.
#pragma once

#include <accelerant/core/log.h>
#include <gtest/gtest.h>

#include <exception>
#include <limits>
#include <string>

#include "support/expect_error.h"

namespace mistakes {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Returns the warnings and errors logged while f runs, and the message of the exception that ends
// f, if any.
template <class F>
std::string said_by(F&& f) {
  std::string said;
  const auto before = accelerant::set_log_handler([&](accelerant::LogLevel level, auto text) {
    if (level >= accelerant::LogLevel::warning) said += text;
  });
  try {
    f();
  } catch (const std::exception& exception) {
    said += exception.what();
  }
  accelerant::set_log_handler(before);
  return said;
}

// How often the part occurs in the text.
inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace mistakes
