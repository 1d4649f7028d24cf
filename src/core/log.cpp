#include "accelerant/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/launch_contract.h"

namespace accelerant {
namespace {

void set_level_from_environment(spdlog::logger& logger) {
  logger.set_level(spdlog::level::warn);
  const char* name = std::getenv("ACCELERANT_LOG_LEVEL");
  if (name == nullptr) return;
  const auto level = spdlog::level::from_str(name);
  // spdlog takes an unknown name for "off".
  if (level == spdlog::level::off && std::string_view(name) != "off") {
    logger.warn("ACCELERANT_LOG_LEVEL: expected debug, info, warning, error or off, got {}", name);
    return;
  }
  logger.set_level(level);
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

void write_to_stderr(LogLevel level, std::string_view message) {
  // Kept out of spdlog's registry, so that a program that uses spdlog itself is not disturbed.
  static const std::unique_ptr<spdlog::logger> logger = [] {
    auto made = std::make_unique<spdlog::logger>("accelerant",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const std::string rank = launched_rank();
    // As the launcher names the lines of ranks, which then leaves these alone.
    made->set_pattern(rank.empty() ? "[accelerant] %l: %v"
                                   : "[rank " + rank + "] accelerant %l: %v");
    set_level_from_environment(*made);
    return made;
  }();
  logger->log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

std::mutex handler_mutex;
LogHandler current_handler;  // empty: write_to_stderr

}  // namespace

void log(LogLevel level, std::string_view message) {
  LogHandler handler;
  {
    const std::lock_guard lock(handler_mutex);
    handler = current_handler;
  }
  handler ? handler(level, message) : write_to_stderr(level, message);
}

void log_on_main(LogLevel level, std::string_view message) {
  static const std::string rank = launched_rank();
  if (rank.empty() || rank == "0") log(level, message);
}

LogHandler set_log_handler(LogHandler handler) {
  const std::lock_guard lock(handler_mutex);
  return std::exchange(current_handler, std::move(handler));
}

}  // namespace accelerant
