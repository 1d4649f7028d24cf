// What the library logs.
#pragma once

#include <accelerant/core/log.h>

#include <string>

// Gathers what is logged for its own lifetime.
class GatheredLog {
 public:
  GatheredLog()
      : before_(accelerant::set_log_handler([this](auto, auto text) { text_ += text; })) {}
  ~GatheredLog() { accelerant::set_log_handler(before_); }
  GatheredLog(const GatheredLog&) = delete;
  GatheredLog& operator=(const GatheredLog&) = delete;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  accelerant::LogHandler before_;
};
