// Notices when loss scaling skips every step: no scale is small enough, so the training stands
// still.
#pragma once

#include <cstdint>

namespace accelerant::detail {

struct Core;

class SkipWatch {
 public:
  // A step was submitted. Looks at what the device has told so far, and waits for nothing.
  void look(Core& core);

 private:
  // When the last applied step was known.
  int64_t updates_ = 0;
  int64_t skips_ = 0;
};

}  // namespace accelerant::detail
