// The message of an exception.
#pragma once

#include <string>

namespace accelerant::detail {

// The message of the exception being handled; torch's exceptions without their backtrace.
std::string current_message();

}  // namespace accelerant::detail
