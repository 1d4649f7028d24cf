// A bar that shows how far a training is, while it runs. Only on a terminal.
#pragma once

#include <accelerant/track/progress_bar.h>

#include <cstdint>
#include <optional>

#include "run_log.h"

namespace demo {

class Progress {
 public:
  // `updates`: of the whole training.
  explicit Progress(int64_t updates) : updates_(updates) {}
  ~Progress() { hide(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const RunLog& log);

  // Removes the bar, so that something can be printed in its place.
  void hide();

 private:
  int64_t updates_;
  std::optional<accelerant::ProgressBar> bar_;
};

}  // namespace demo
