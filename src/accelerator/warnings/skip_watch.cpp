#include "accelerator/warnings/skip_watch.h"

#include <c10/util/StringUtil.h>

#include "accelerator/core.h"

namespace accelerant::detail {
namespace {

// More than the default scale needs to come down to 1.
constexpr int64_t kMostInARow = 20;

}  // namespace

void SkipWatch::look(Core& core) {
  if (!core.scaler.is_enabled() || core.capture.is_capturing()) return;
  if (!core.warnings.is_open(&WarningOptions::repeated_skips)) return;
  const GradScalerStatus status = core.scaler.status();
  if (status.updates - updates_ != status.skips - skips_) {  // an update among them was applied
    updates_ = status.updates;
    skips_ = status.skips;
    return;
  }
  const int64_t in_a_row = status.updates - updates_;
  // From a large start the scale may need more steps to come down.
  if (in_a_row < kMostInARow || status.scale > 1.0) return;
  const bool scales = core.scales_loss();
  std::string report = core.scaler.overflow_report().to_string();
  if (!report.empty()) report = "\nGradients that are not finite:\n" + report;
  core.warnings.say(
      &WarningOptions::repeated_skips,
      c10::str("The last ", in_a_row, " optimizer steps were all skipped, and nothing is learnt: ",
               "gradients are inf or nan",
               scales ? c10::str(" however small the loss scale is (now ", status.scale, ")") : "",
               ". Look for a loss or an input that is inf or nan, or a division by zero",
               scales ? "; or write .mixed_precision = accelerant::Precision::bf16, whose range is "
                        "that of float32"
                      : ". Parameters that are inf or nan themselves need an earlier checkpoint"),
      report);
}

}  // namespace accelerant::detail
