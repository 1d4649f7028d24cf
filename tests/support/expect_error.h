// Expectations about the text of errors.
#pragma once

#include <accelerant/core/error.h>
#include <gtest/gtest.h>

#include <string>

// The message of the accelerant::Error that f throws; a failure if it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const accelerant::Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no accelerant::Error was thrown";
  return "";
}

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
}
