#include "accelerator/warnings/finished_training.h"

#include <c10/util/StringUtil.h>

#include "accelerator/core.h"

namespace accelerant::detail {

void FinishedTraining::note_empty_epochs(const Core& core, int64_t count) {
  const auto resumed = core.checkpoints.resumed();
  text_ = c10::str("Nothing was left to train: ", resumed ? resumed->path : "the checkpoint",
                   " was saved after the last of ", count, count == 1 ? " epoch" : " epochs",
                   ". To train on, ask for more epochs; to begin anew, set another project.dir or "
                   ".resume = \"no\"");
}

void FinishedTraining::say_if_nothing_was_done(Core& core) {
  if (text_.empty() || core.counts.backwards > 0) return;
  core.warnings.say(&WarningOptions::finished_training, text_);
}

}  // namespace accelerant::detail
