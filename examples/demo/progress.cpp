#include "progress.h"

#include <unistd.h>

#include <cstdio>

namespace demo {

void Progress::show(const RunLog& log) {
  if (isatty(STDERR_FILENO) == 0) return;
  const RunLog::Rank& rank = log.rank(0);
  if (!bar_) bar_.emplace(accelerant::ProgressBarOptions{.total = updates_, .unit = "update"});
  if (rank.updates > bar_->state().done) {
    bar_->set("loss", log.latest_loss());
    bar_->advance(rank.updates - bar_->state().done);
  }
}

void Progress::hide() {
  if (!bar_) return;
  bar_.reset();                            // ends its line
  std::fputs("\x1b[1A\x1b[2K\r", stderr);  // goes back to it, and clears it
}

}  // namespace demo
