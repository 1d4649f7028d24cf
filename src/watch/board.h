// Where the processes put their heartbeats for each other to read.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace accelerant::dist {

// Thread-safe. Nothing here throws, or blocks for longer than it may: a store whose process is
// stopped never answers.
class Board {
 public:
  virtual ~Board() = default;

  // Replaces this process's text. Returns at once.
  virtual void write(const std::string& text) = 0;

  // Waits until what was written has been sent. False: not within this time.
  virtual bool flush(std::chrono::milliseconds timeout) = 0;

  // The texts of all processes, in the order of ranks; empty for one that has written nothing.
  // Nothing if there was no answer within this time.
  virtual std::optional<std::vector<std::string>> read(std::chrono::milliseconds timeout) = 0;

  // When the store last answered, even if too late for read(). Nothing if it never has, or if that
  // is not known.
  virtual std::optional<std::chrono::steady_clock::time_point> last_answer() const {
    return std::nullopt;
  }

  // Why the last attempt failed; empty if it succeeded or got no answer.
  virtual std::string last_error() const = 0;
};

}  // namespace accelerant::dist
