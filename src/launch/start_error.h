// A program that cannot be started.
#pragma once

#include "accelerant/core/error.h"

namespace accelerant::launch {

class StartError : public Error {
 public:
  StartError(const ErrorDetails& details, int exit_code) : Error(details), exit_code_(exit_code) {}

  // As shells have it: 127 if there is no such program, 126 if it cannot be run.
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

}  // namespace accelerant::launch
