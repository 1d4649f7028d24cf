// Notices a program that resumes a training after its last epoch, and so does nothing.
#pragma once

#include <cstdint>
#include <string>

namespace accelerant::detail {

struct Core;

class FinishedTraining {
 public:
  // A loop over `count` epochs does nothing, since the checkpoint was saved after its end. Another
  // loop may follow that has something to do.
  void note_empty_epochs(const Core& core, int64_t count);

  // The Accelerator ends.
  void say_if_nothing_was_done(Core& core);

 private:
  std::string text_;
};

}  // namespace accelerant::detail
