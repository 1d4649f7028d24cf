#include "accelerator/warnings/warnings.h"

#include "accelerant/core/log.h"

namespace accelerant::detail {

bool Warnings::is_open(Kind kind) const { return options_.*kind; }

void Warnings::say(Kind kind, const std::string& text) {
  if (!is_open(kind)) return;
  close(kind);
  // Processes run the same program, but have losses of their own.
  if (kind == &WarningOptions::nonfinite_loss) {
    log(LogLevel::warning, text);
  } else {
    log_on_main(LogLevel::warning, text);
  }
}

}  // namespace accelerant::detail
