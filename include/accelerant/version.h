#pragma once

#include <version>

// The version of Accelerant, following semantic versioning. CMake reads it from here.
#define ACCELERANT_VERSION "0.1.0"

#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error "Accelerant and libtorch use the new C++ ABI: remove the flag _GLIBCXX_USE_CXX11_ABI=0"
#endif
