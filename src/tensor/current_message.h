// What an exception says.
#pragma once

#include <string>

namespace accelerant::detail {

// Of the exception that is being handled; one of torch's without its backtrace.
std::string current_message();

}  // namespace accelerant::detail
