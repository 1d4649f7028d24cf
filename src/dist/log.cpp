#include "accelerant/dist/process_control.h"

namespace accelerant::dist {

void log_on_main_process(const World& world, LogLevel level, std::string_view message) {
  if (world.environment().is_main_process()) log(level, message);
}

void log_on_local_main_process(const World& world, LogLevel level, std::string_view message) {
  if (world.environment().is_local_main_process()) log(level, message);
}

void log_in_order(const World& world, LogLevel level, std::string_view message) {
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) log(level, message);
    wait_for_everyone(world, "log_in_order");
  }
}

}  // namespace accelerant::dist
