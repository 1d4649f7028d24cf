#include "accelerant/core/error.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

namespace accelerant {
namespace {

using nlohmann::json;

double now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_1970).count();
}

std::string to_text(const ErrorReport& report) {
  const double time = report.time > 0 ? report.time : now();
  // torchelastic parses the timestamp as an int from a string. Ranks often fail within the same
  // second, so the exact time is stored beside it.
  json extra = {{"timestamp", std::to_string(static_cast<int64_t>(std::floor(time)))},
                {"time", time}};
  if (report.rank >= 0) extra["rank"] = report.rank;
  if (report.step) extra["step"] = *report.step;
  if (report.is_consequence) extra["is_consequence"] = true;
  const json document = {{"message", {{"message", report.message}, {"extraInfo", extra}}}};
  // Messages may hold any bytes; JSON allows only UTF-8.
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool write_atomically(const std::string& path, const std::string& text) {
  const std::string beside = path + ".tmp." + std::to_string(::getpid());
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return false;
  const bool written = write_all(file, text);
  const bool closed = ::close(file) == 0;
  if (written && closed && ::rename(beside.c_str(), path.c_str()) == 0) return true;
  ::unlink(beside.c_str());
  return false;
}

// The value of a key, if the object has it with this type.
template <class T>
std::optional<T> value_of(const json& object, const char* key) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return std::nullopt;
  } else if constexpr (std::is_same_v<T, double>) {
    if (!found->is_number()) return std::nullopt;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!found->is_boolean()) return std::nullopt;
  } else {
    if (!found->is_number_integer()) return std::nullopt;
  }
  return found->get<T>();
}

std::optional<double> seconds_of(const std::string& text) {
  double seconds = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return seconds;
}

}  // namespace

bool write_error_report(const std::string& path, const ErrorReport& report) noexcept {
  try {
    static std::mutex mutex;
    static std::set<std::string> written;
    const std::lock_guard lock(mutex);
    if (written.contains(path)) return false;
    if (!write_atomically(path, to_text(report))) return false;
    written.insert(path);
    return true;
  } catch (...) {
    return false;  // for example out of memory: the exit code must still reach the launcher
  }
}

std::optional<ErrorReport> read_error_report(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const json document = json::parse(file, nullptr, /*allow_exceptions=*/false);
  ErrorReport report;
  if (const auto text = value_of<std::string>(document, "message")) {  // older torchelastic
    report.message = *text;
    return report;
  }
  if (!document.is_object() || !document.contains("message")) return std::nullopt;
  const json& message = document["message"];
  const auto text = value_of<std::string>(message, "message");
  if (!text) return std::nullopt;
  report.message = *text;
  if (!message.contains("extraInfo")) return report;
  const json& extra = message["extraInfo"];
  report.rank = value_of<int64_t>(extra, "rank").value_or(-1);
  report.step = value_of<int64_t>(extra, "step");
  report.is_consequence = value_of<bool>(extra, "is_consequence").value_or(false);
  const auto timestamp = value_of<std::string>(extra, "timestamp");
  report.time =
      value_of<double>(extra, "time").value_or(timestamp ? seconds_of(*timestamp).value_or(0) : 0);
  return report;
}

}  // namespace accelerant
