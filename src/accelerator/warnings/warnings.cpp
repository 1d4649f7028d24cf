#include "accelerator/warnings/warnings.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "accelerant/core/log.h"

namespace accelerant::detail {
namespace {

struct Switch {
  Warnings::Kind kind;
  std::string_view name;
};

constexpr std::array kSwitches = {
    Switch{&WarningOptions::bypassed_model, "bypassed_model"},
    Switch{&WarningOptions::bypassed_backward, "bypassed_backward"},
    Switch{&WarningOptions::bypassed_optimizer, "bypassed_optimizer"},
    Switch{&WarningOptions::missing_gradients, "missing_gradients"},
    Switch{&WarningOptions::missing_step, "missing_step"},
    Switch{&WarningOptions::nonfinite_loss, "nonfinite_loss"},
    Switch{&WarningOptions::repeated_skips, "repeated_skips"},
    Switch{&WarningOptions::empty_loop, "empty_loop"},
    Switch{&WarningOptions::changed_schedule, "changed_schedule"},
    Switch{&WarningOptions::slow_precision, "slow_precision"},
    Switch{&WarningOptions::scaled_gradients, "scaled_gradients"},
    Switch{&WarningOptions::used_gradients, "used_gradients"},
    Switch{&WarningOptions::schedule_steps, "schedule_steps"},
    Switch{&WarningOptions::replaced_parameters, "replaced_parameters"},
    Switch{&WarningOptions::undivided_data, "undivided_data"},
    Switch{&WarningOptions::finished_training, "finished_training"},
    Switch{&WarningOptions::unused_checkpoints, "unused_checkpoints"}};
// A new switch needs a name here, and a false in WarningOptions::none().
static_assert(sizeof(WarningOptions) == kSwitches.size());

std::string how_to_silence(Warnings::Kind kind) {
  const auto found = std::ranges::find(kSwitches, kind, &Switch::kind);
  return " If that is meant, switch this warning off: .warnings = {." + std::string(found->name) +
         " = false}";
}

}  // namespace

bool Warnings::is_open(Kind kind) const { return options_.*kind; }

void Warnings::say(Kind kind, const std::string& what, const std::string& details) {
  if (!is_open(kind)) return;
  close(kind);
  const std::string text = what + (what.ends_with('?') ? "" : ".") + how_to_silence(kind) + details;
  // Processes run the same program, but have losses of their own.
  if (kind == &WarningOptions::nonfinite_loss) {
    log(LogLevel::warning, text);
  } else {
    log_on_main(LogLevel::warning, text);
  }
}

}  // namespace accelerant::detail
