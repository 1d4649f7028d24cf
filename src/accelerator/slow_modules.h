// Modules of libtorch that have a faster drop-in.
#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace accelerant::detail {

// One line that names those inside of a module and says what to write instead; empty if there are none.
std::string slow_modules_advice(const torch::nn::Module& module);

}  // namespace accelerant::detail
