// Messages between processes, and durations in messages for people.
#pragma once

#include <c10/util/StringUtil.h>

#include <chrono>
#include <string>
#include <vector>

#include "accelerant/dist/world.h"

namespace accelerant::dist {

// "0.5 s".
inline std::string seconds_text(std::chrono::milliseconds time) {
  return c10::str(static_cast<double>(time.count()) / 1000, " s");
}

// Exchanges bytes of any length between all processes, over the control group; objects and the
// agreement about tensors build on it. Returns what each process sent, by rank. Short messages take
// one exchange, longer ones two.
std::vector<std::string> exchange_messages(const World& world, const char* name,
                                           const std::string& bytes);

}  // namespace accelerant::dist
