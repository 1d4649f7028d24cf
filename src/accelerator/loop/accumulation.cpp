#include "accelerator/loop/accumulation.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerant/core/error.h"

namespace accelerant::detail {
namespace {

// How many micro-steps the window will have, as far as is known at its start. Dividing losses by
// the right number at once avoids a correction later.
double expected_steps(const WindowRules& rules, const LoaderProgress& loader) {
  int64_t steps = rules.steps;
  if (rules.sync_with_dataloader && loader.batches_left && *loader.batches_left > 0) {
    steps = std::min(steps, *loader.batches_left);
  }
  return static_cast<double>(steps);
}

void take_form(Gathered& gathered, Gathered::Form form) {
  if (gathered.form == Gathered::Form::none) gathered.form = form;
  if (gathered.form == form) return;
  throw Error(ErrorDetails{
      .problem =
          "A window of accumulated gradients is either a mean over micro-steps or over items",
      .expected = "one form of backward() in a window",
      .got = "backward(loss) and backward(loss_sum, num_items)",
      .hint = "use separate windows for losses of different kinds: accumulate(model_a), "
              "accumulate(model_b)"});
}

at::Tensor divided(const at::Tensor& loss, double divisor) {
  return divisor == 1.0 ? loss : loss.div(divisor);
}

[[noreturn]] void refuse_items(const std::string& expected, const std::string& got) {
  throw Error(
      ErrorDetails{.problem = "backward(loss_sum, num_items) got an invalid number of items",
                   .expected = expected,
                   .got = got});
}

void check_items(const at::Tensor& num_items, const at::Tensor& loss_sum) {
  if (!num_items.defined()) refuse_items("a tensor with one element", "an undefined tensor");
  if (num_items.numel() != 1) {
    refuse_items("a tensor with one element", c10::str("shape ", num_items.sizes()));
  }
  if (!at::isIntegralType(num_items.scalar_type(), /*includeBool=*/false)) {
    refuse_items("an integral type", c10::toString(num_items.scalar_type()));
  }
  if (!num_items.is_cpu() && num_items.device() != loss_sum.device()) {
    refuse_items(c10::str("a tensor on the CPU or on the loss's device, ", loss_sum.device()),
                 num_items.device().str());
  }
}

// Zero items count as one, to avoid a division by zero.
double or_one(double items) { return items == 0 ? 1.0 : items; }
at::Tensor or_one(const at::Tensor& items) { return items.masked_fill(items.eq(0), 1); }

double averaged(double items, const MeanOverProcesses& mean) {
  if (!mean) return items;
  return mean(at::scalar_tensor(items, at::kDouble)).item<double>();
}

at::Tensor averaged(const at::Tensor& items, const MeanOverProcesses& mean) {
  const at::Tensor number = items.to(at::kDouble);
  return mean ? mean(number) : number;
}

void add(Gathered::Items& items, const at::Tensor& more) {
  items.on_device = items.on_device.defined() ? items.on_device.add(more) : more;
}

// One exchange, or none: all processes run the same backwards, each with its own number of items.
void average_items(Gathered& gathered, const MeanOverProcesses& mean) {
  if (gathered.own_backwards == 0) return;
  Gathered::Items& own = gathered.own_items;
  if (own.on_device.defined()) {
    add(gathered.items, averaged(own.on_device.add(own.on_host), mean));
  } else {
    gathered.items.on_host += averaged(own.on_host, mean);
  }
  own = {};
  gathered.own_backwards = 0;
}

}  // namespace

void begin_micro_step(Window& window, const WindowRules& rules, const LoaderProgress& loader) {
  if (window.complete) {
    // Unused gradients stay and accumulate further, unless they were already corrected: then others
    // cannot be added to them.
    if (window.gathered.used || !window.gathered.corrected.empty()) window.gathered = {};
    window.micro_steps = 0;
  }
  if (window.gathered.micro_steps == 0) window.gathered.divisor = expected_steps(rules, loader);
  ++window.micro_steps;
  window.complete =
      window.micro_steps >= rules.steps || (rules.sync_with_dataloader && loader.is_last);
  window.in_scope = true;
  window.backward_ran = false;
  window.stepped = false;
  window.samples = loader.samples;
  window.gathered.samples += loader.samples;
}

void end_micro_step(Window& window) { window.in_scope = false; }

bool take_back_micro_step(Window& window, bool gradients_were_finished) {
  window.in_scope = false;
  --window.micro_steps;
  window.gathered.samples -= window.samples;
  if (window.backward_ran) --window.gathered.micro_steps;
  const bool drops = (window.backward_ran && window.gathered.micro_steps == 0) ||
                     gradients_were_finished || !window.gathered.corrected.empty();
  if (drops) {
    window.gathered = {};
    window.micro_steps = 0;
  }
  window.complete = window.micro_steps == 0;  // the same as before the first micro-step
  return drops;
}

void start_over(Window& window, const WindowRules& rules, const LoaderProgress& loader) {
  window.gathered = {};
  window.micro_steps = 0;
  window.complete = true;
  if (window.in_scope) begin_micro_step(window, rules, loader);
}

void note_backward(Window& window) {
  if (!window.backward_ran) ++window.gathered.micro_steps;
  window.backward_ran = true;
}

at::Tensor weigh_mean(Window* window, const at::Tensor& loss) {
  if (window == nullptr) return loss;
  take_form(window->gathered, Gathered::Form::mean);
  return divided(loss, window->gathered.divisor);
}

at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, int64_t num_items,
                       const MeanOverProcesses& mean) {
  if (num_items < 0) refuse_items("0 or more", c10::str(num_items));
  const auto own = static_cast<double>(num_items);
  if (window == nullptr) return divided(loss_sum, or_one(averaged(own, mean)));
  Gathered& gathered = window->gathered;
  const bool first = gathered.form == Gathered::Form::none;
  take_form(gathered, Gathered::Form::items);
  if (first) {
    // Until the total is known, assume that all micro-steps are like the first. This keeps fp16
    // gradients in the range of a mean, and needs no correction if the window has a single
    // micro-step.
    gathered.items.on_host = averaged(own, mean);
    gathered.divisor *= or_one(gathered.items.on_host);
  } else {
    gathered.own_items.on_host += own;
    ++gathered.own_backwards;
  }
  if (gathered.device_divisor.defined()) return loss_sum.div(gathered.device_divisor);
  return divided(loss_sum, gathered.divisor);
}

at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, const at::Tensor& num_items,
                       const MeanOverProcesses& mean) {
  check_items(num_items, loss_sum);
  if (num_items.is_cpu()) return weigh_items(window, loss_sum, num_items.item<int64_t>(), mean);

  const at::Tensor own = num_items.detach().reshape({});
  if (window == nullptr) return loss_sum.div(or_one(averaged(own, mean)).to(at::kFloat));
  Gathered& gathered = window->gathered;
  const bool first = gathered.form == Gathered::Form::none;
  take_form(gathered, Gathered::Form::items);
  if (first) {
    gathered.items.on_device = averaged(own, mean);
    gathered.device_divisor = or_one(gathered.items.on_device).mul(gathered.divisor).to(at::kFloat);
  } else {
    add(gathered.own_items, own.to(at::kDouble));
    ++gathered.own_backwards;
  }
  if (gathered.device_divisor.defined()) return loss_sum.div(gathered.device_divisor);
  return divided(loss_sum, gathered.divisor);
}

Correction correction_of(Gathered& gathered, const MeanOverProcesses& mean) {
  switch (gathered.form) {
    case Gathered::Form::none:
      return {};
    case Gathered::Form::mean:
      return {.factor = gathered.divisor /
                        static_cast<double>(std::max<int64_t>(gathered.micro_steps, 1))};
    case Gathered::Form::items:
      break;
  }
  average_items(gathered, mean);
  const Gathered::Items& items = gathered.items;
  if (!items.on_device.defined()) return {.factor = gathered.divisor / or_one(items.on_host)};
  const at::Tensor total = or_one(items.on_device.add(items.on_host));
  const at::Tensor factor = gathered.device_divisor.defined()
                                ? gathered.device_divisor.to(at::kDouble).div(total)
                                : total.reciprocal().mul(gathered.divisor);
  return {.device_factor = factor.to(at::kFloat)};
}

std::shared_ptr<Window> Accumulation::window_of(std::vector<const ModelState*> models) {
  std::sort(models.begin(), models.end());
  models.erase(std::unique(models.begin(), models.end()), models.end());
  for (const auto& window : windows_) {
    if (window->models == models) return window;
  }
  auto window = std::make_shared<Window>();
  window->models = std::move(models);
  windows_.push_back(window);
  return window;
}

void Accumulation::enter(std::shared_ptr<Window> window, const WindowRules& rules,
                         const LoaderProgress& loader) {
  if (open() != nullptr) {
    throw Error(ErrorDetails{.problem = "accumulate() is already open",
                             .expected = "one scope at a time",
                             .got = "a second scope inside the first",
                             .hint = "end the outer scope first, or name all models in one "
                                     "accumulate()"});
  }
  begin_micro_step(*window, rules, loader);
  latest_ = std::move(window);
}

bool Accumulation::is_gathering() const {
  return std::any_of(windows_.begin(), windows_.end(),
                     [](const auto& window) { return window->is_gathering(); });
}

void Accumulation::start_over(const WindowRules& rules, const LoaderProgress& loader) {
  for (const auto& window : windows_) detail::start_over(*window, rules, loader);
}

void Accumulation::forget(const ModelState& model) {
  std::erase_if(windows_, [&](const auto& window) {
    if (!std::binary_search(window->models.begin(), window->models.end(), &model)) return false;
    // Optimizers no longer wait for this window.
    window->gathered = {};
    window->micro_steps = 0;
    window->complete = true;
    if (latest_ == window && !window->in_scope) latest_.reset();
    return true;
  });
}

void Accumulation::clear() {
  windows_.clear();
  latest_.reset();
}

}  // namespace accelerant::detail
