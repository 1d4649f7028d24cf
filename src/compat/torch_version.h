// This folder holds everything that differs between the supported versions of libtorch (2.11 to
// 2.13) or between builds of one version.
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 11)
#error "Accelerant needs libtorch 2.11 or newer"
#endif

#define ACCELERANT_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||             \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
