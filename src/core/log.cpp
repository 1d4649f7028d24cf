#include "accelerant/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "core/launch_contract.h"
#include "core/log_level.h"
#include "core/texts.h"

namespace accelerant {
namespace {

struct NamedLevel {
  std::string_view name;
  spdlog::level::level_enum level;
};

constexpr NamedLevel kLevels[] = {{"debug", spdlog::level::debug},  {"info", spdlog::level::info},
                                  {"warning", spdlog::level::warn}, {"warn", spdlog::level::warn},
                                  {"error", spdlog::level::err},    {"off", spdlog::level::off}};

void set_level_from_environment(spdlog::logger& logger, const std::string& rank) {
  logger.set_level(spdlog::level::warn);
  const char* value = std::getenv("ACCELERANT_LOG_LEVEL");
  if (value == nullptr || *value == '\0') return;
  const std::string name = lower_case(value);
  for (const NamedLevel& known : kLevels) {
    if (known.name != name) continue;
    logger.set_level(known.level);
    return;
  }
  // All processes of a run have the same environment: one of them is enough to say it.
  if (!rank.empty() && rank != "0") return;
  logger.warn(
      "ACCELERANT_LOG_LEVEL: expected debug, info, warning, error or off, got '{}'; using warning",
      value);
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

spdlog::logger& default_logger() {
  // Kept out of spdlog's registry, so that a program that uses spdlog itself is not disturbed.
  static const std::unique_ptr<spdlog::logger> logger = [] {
    auto made = std::make_unique<spdlog::logger>("accelerant",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const std::string rank = launched_rank();
    // The launcher prefixes the lines of ranks in the same way, and leaves these alone.
    made->set_pattern(rank.empty() ? "[accelerant] %l: %v"
                                   : "[rank " + rank + "] accelerant %l: %v");
    set_level_from_environment(*made, rank);
    return made;
  }();
  return *logger;
}

void write_to_stderr(LogLevel level, std::string_view message) {
  default_logger().log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

std::mutex handler_mutex;
LogHandler current_handler;  // empty: write_to_stderr

LogHandler handler_in_force() {
  const std::lock_guard lock(handler_mutex);
  return current_handler;
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  const LogHandler handler = handler_in_force();
  handler ? handler(level, message) : write_to_stderr(level, message);
}

void log_on_main(LogLevel level, std::string_view message) {
  static const std::string rank = launched_rank();
  if (rank.empty() || rank == "0") log(level, message);
}

void check_log_level() {
  if (!handler_in_force()) default_logger();
}

LogHandler set_log_handler(LogHandler handler) {
  const std::lock_guard lock(handler_mutex);
  return std::exchange(current_handler, std::move(handler));
}

}  // namespace accelerant
