// Which 16-bit types a CPU computes in slowly.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "accelerant/accelerator/options.h"
#include "accelerator/warnings/warnings.h"

namespace accelerant::detail {

// The instructions of the CPU, as /proc/cpuinfo lists them: names with spaces between them. Empty
// where that cannot be read.
std::string cpu_instructions();

// A warning, if a CPU with these instructions has none for the type: libtorch then converts every
// operand to float32 and back.
std::optional<std::string> why_slow(Precision precision, std::string_view instructions);

// Says so of this CPU.
void warn_if_slow(Warnings& warnings, Precision precision);

}  // namespace accelerant::detail
