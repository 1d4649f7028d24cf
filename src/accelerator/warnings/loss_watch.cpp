#include "accelerator/warnings/loss_watch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "core/texts.h"

namespace accelerant::detail {
namespace {

constexpr int64_t kEvery = 64;

bool is_finite(const at::Tensor& number) {
  switch (number.scalar_type()) {
    case at::kFloat:
      return std::isfinite(*number.const_data_ptr<float>());
    case at::kDouble:
      return std::isfinite(*number.const_data_ptr<double>());
    case at::kHalf:
      return std::isfinite(static_cast<float>(*number.const_data_ptr<at::Half>()));
    case at::kBFloat16:
      return std::isfinite(static_cast<float>(*number.const_data_ptr<at::BFloat16>()));
    default:
      return true;
  }
}

// Which parameters are not finite already. Waits for the device.
std::vector<std::string> nonfinite_parameters(const Core& core) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  for (const auto& model : core.models.all()) {
    for (const auto& item : model->module().named_parameters()) {
      const at::Tensor& parameter = item.value();
      if (!parameter.is_floating_point() || at::isfinite(parameter).all().item<bool>()) continue;
      names.push_back(item.key());
    }
  }
  return names;
}

void warn_of_loss(Core& core, const at::Tensor& loss, int64_t backward) {
  constexpr std::size_t shown = 5;
  const std::vector<std::string> names = nonfinite_parameters(core);
  std::string cause;
  if (names.empty()) {
    cause = "All parameters are still finite, so look at this batch and at the learning rate.";
  } else {
    cause = c10::str("Parameters are inf or nan by now: ", list_text(names, shown),
                     ". Training cannot recover from that: go back to a checkpoint.");
  }
  core.warnings.say(
      &WarningOptions::nonfinite_loss,
      c10::str("The loss is ", loss.item<double>(), " in backward ", backward, ". ", cause,
               " To leave such updates out, write .nonfinite = accelerant::Nonfinite::skip in the "
               "options of the Accelerator; Nonfinite::stop ends the training at the first one and "
               "names the parameters"));
}

}  // namespace

void LossWatch::begin_backward(Core& core, const at::Tensor& loss) {
  // The step is skipped, and SkipWatch tells if that happens again and again; or it stops.
  if (core.scaler.is_enabled() || !core.warnings.is_open(&WarningOptions::nonfinite_loss)) return;
  if (loss.numel() != 1 || !loss.is_floating_point()) return;
  captured_ = core.capture.is_capturing() ? loss.detach() : at::Tensor();
  if (!captured_.defined()) look(core, loss);
}

void LossWatch::look_in_replays(Core& core) {
  if (!captured_.defined()) return;
  // Held, so that the graph does not put something else in its place.
  core.capture.in_replays([this, &core, held = std::exchange(captured_, at::Tensor())] {
    if (core.warnings.is_open(&WarningOptions::nonfinite_loss)) look(core, held);
  });
}

void LossWatch::look(Core& core, const at::Tensor& loss) {
  if (loss.is_cpu()) {
    if (!is_finite(loss)) warn_of_loss(core, loss, core.counts.backwards);
    return;
  }
  read_arrived(core);
  if (++calls_ % kEvery != 0 || copy_.defined()) return;
  backward_ = core.counts.backwards;
  send_for(loss);
}

void LossWatch::send_for(const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  copy_ = at::empty({}, loss.options().device(at::kCPU).pinned_memory(true));
  copy_.copy_(loss.detach().reshape({}), /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(loss.device().type());
  arrived_.emplace(loss.device().type());
  arrived_->record(guard.getStream(loss.device()));
}

void LossWatch::read_arrived(Core& core) {
  if (!copy_.defined() || !arrived_->query()) return;
  const at::Tensor loss = std::exchange(copy_, at::Tensor());
  if (!is_finite(loss)) warn_of_loss(core, loss, backward_);
}

}  // namespace accelerant::detail
