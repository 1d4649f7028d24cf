#include "accelerator/warnings/missing_step.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerator/core.h"

namespace accelerant::detail {
namespace {

// Enough for programs that accumulate by hand, or run a backward for each term of a loss.
int64_t most_backwards_without_step(int64_t window) { return std::max<int64_t>(100, 4 * window); }

}  // namespace

void look_for_missing_step(Core& core) {
  if (core.counts.step_calls > 0) return;
  if (core.scales_loss() && core.counts.backwards == 1 && core.optimizers.all().empty()) {
    core.warnings.say(
        &WarningOptions::bypassed_optimizer,
        "backward() runs under fp16, but no optimizer is prepared: its gradients carry the loss "
        "scale, and an optimizer of the program's own would step with them as they are. Prepare it "
        "together with the model: auto [model, optimizer] = accelerator.prepare(net, adamw)");
  }
  if (core.counts.backwards != most_backwards_without_step(core.window_rules().steps)) return;
  const bool reason_is_told = !core.warnings.is_open(&WarningOptions::bypassed_optimizer);
  if (reason_is_told || core.optimizers.all().empty()) return;
  core.warnings.say(&WarningOptions::missing_step,
                    c10::str("backward() has run ", core.counts.backwards,
                             " times, but no prepared optimizer was asked to step. After "
                             "backward(), call optimizer.step() and optimizer.zero_grad() on what "
                             "prepare() returned, not on the original"));
}

}  // namespace accelerant::detail
