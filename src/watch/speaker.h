// Logs without keeping its caller waiting. Whoever writes to a terminal that is held (Ctrl-S) is
// blocked; a monitor that were would seem to belong to a stopped process.
#pragma once

#include <memory>
#include <string>

namespace accelerant::dist {

class Speaker {
 public:
  Speaker();
  // Waits until everything is said, but not for more than a second.
  ~Speaker();
  Speaker(const Speaker&) = delete;
  Speaker& operator=(const Speaker&) = delete;

  // Logs a warning soon, in a thread of its own.
  void warn(std::string text);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accelerant::dist
