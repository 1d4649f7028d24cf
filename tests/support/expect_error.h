// Expectations about the text of errors.
#pragma once

#include <accelerant/core/error.h>
#include <gtest/gtest.h>

#include <string>

// The message of the accelerant::Error that f throws. Fails if it throws none.
template <class F>
std::string whole_error_of(F&& f) {
  try {
    f();
  } catch (const accelerant::Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no accelerant::Error was thrown";
  return "";
}

// The first line of that message, which is PyTorch's text where PyTorch has one.
template <class F>
std::string error_of(F&& f) {
  const std::string message = whole_error_of(f);
  return message.substr(0, message.find('\n'));
}

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
}
