#include "accelerant/dist/local_sgd.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <exception>
#include <string>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/dist/world.h"
#include "dist/packing.h"
#include "dist/transport.h"

namespace accelerant::dist {
namespace {

// A copy, so that parameters are unchanged if the exchange fails. 16 bits would lose precision in
// the sum.
at::Tensor summand_of(const at::Tensor& parameter) {
  const at::ScalarType type = parameter.scalar_type();
  const bool is_16_bit = type == at::kHalf || type == at::kBFloat16;
  return parameter.detach()
      .to(is_16_bit ? at::kFloat : type, /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

}  // namespace

void average_parameters(const World& world, const std::vector<at::Tensor>& parameters) {
  if (!world.environment().use_distributed()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums(parameters.size());
  for (const Pack& pack : packs_of(parameters)) {
    for (const std::size_t i : pack) sums[i] = summand_of(parameters[i]);
    all_reduce_pack(world, "averaging parameters", sums, pack, Reduction::sum);
    for (const std::size_t i : pack) {
      parameters[i].copy_(sums[i].div_(world.size()));
      sums[i].reset();
    }
  }
}

LocalSgd::LocalSgd(std::shared_ptr<World> world, std::vector<at::Tensor> parameters,
                   const LocalSgdOptions& options, const StopExchange& stop_exchange)
    : world_(std::move(world)),
      parameters_(std::move(parameters)),
      steps_(options.steps),
      is_active_(options.enabled && world_ && world_->environment().use_distributed()),
      exceptions_at_entry_(std::uncaught_exceptions()) {
  if (steps_ < 1) {
    throw Error(ErrorDetails{.problem = "LocalSgdOptions::steps is out of range",
                             .expected = "at least 1",
                             .got = c10::str(steps_)});
  }
  if (is_active_ && stop_exchange) exchange_stopped_ = stop_exchange();
}

LocalSgd::~LocalSgd() {
  if (!process_.is_this_one()) return;
  if (std::uncaught_exceptions() > exceptions_at_entry_) return;
  try {
    finish();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("the last average of LocalSgd failed: ") + error.what());
  }
}

void LocalSgd::step() {
  ++num_steps_;
  if (is_active_ && num_steps_ % steps_ == 0) average_parameters(*world_, parameters_);
}

void LocalSgd::finish() {
  if (!std::exchange(is_active_, false)) return;
  average_parameters(*world_, parameters_);
  exchange_stopped_.reset();
}

}  // namespace accelerant::dist
