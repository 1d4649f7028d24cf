#pragma once

#include <string>

namespace accelerant {

// "SIGSEGV"; "signal 42" for one without a name.
std::string signal_name(int signal);

}  // namespace accelerant
