// Bytes of any length between all processes, over the control group; the base of objects and of the
// agreement about tensors.
#pragma once

#include <string>
#include <vector>

#include "accelerant/dist/world.h"

namespace accelerant::dist {

// What each process sends, by rank. Short ones take one exchange, longer ones two.
std::vector<std::string> exchange_messages(const World& world, const char* name,
                                           const std::string& bytes);

}  // namespace accelerant::dist
