// Collects what the library logs.
#pragma once

#include <accelerant/core/log.h>

#include <string>
#include <vector>

// Collects what is logged during its own lifetime.
class GatheredLog {
 public:
  GatheredLog()
      : before_(accelerant::set_log_handler([this](auto, auto text) {
          messages_.emplace_back(text);
          text_ += text;
        })) {}
  ~GatheredLog() { accelerant::set_log_handler(before_); }
  GatheredLog(const GatheredLog&) = delete;
  GatheredLog& operator=(const GatheredLog&) = delete;

  const std::vector<std::string>& messages() const { return messages_; }
  const std::string& text() const { return text_; }  // all messages joined

 private:
  std::vector<std::string> messages_;
  std::string text_;
  accelerant::LogHandler before_;
};
