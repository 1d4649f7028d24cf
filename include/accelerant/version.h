#pragma once

// The version of Accelerant, following semantic versioning. CMake reads it from here.
#define ACCELERANT_VERSION "0.1.0"
