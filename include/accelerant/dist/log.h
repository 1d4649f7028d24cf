// Messages where several processes run: by one of them, or by all in the order of their ranks. What is
// logged with log() itself comes from every process, whenever it likes.
//
//   dist::log_on_main_process(world, LogLevel::info, "training starts");
//   dist::log_in_order(world, LogLevel::info, "my shard has " + std::to_string(rows) + " rows");
#pragma once

#include <string_view>

#include "accelerant/core/log.h"
#include "accelerant/dist/world.h"

namespace accelerant::dist {

// Only on the main process, as Accelerate's main_process_only=True; only on that of each machine.
void log_on_main_process(const World& world, LogLevel level, std::string_view message);
void log_on_local_main_process(const World& world, LogLevel level, std::string_view message);

// One process after the other, as Accelerate's in_order=True. All must call it, whatever they log.
void log_in_order(const World& world, LogLevel level, std::string_view message);

}  // namespace accelerant::dist
