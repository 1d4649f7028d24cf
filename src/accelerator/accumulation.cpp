#include "accelerator/accumulation.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerant/core/error.h"

namespace accelerant::detail {
namespace {

// How many micro-steps the window will have, as far as can be told at its start: losses divided by
// the right number at once need no correction later.
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
      .hint = "give losses that count differently windows of their own: accumulate(model_a), "
              "accumulate(model_b)"});
}

at::Tensor divided(const at::Tensor& loss, double divisor) {
  return divisor == 1.0 ? loss : loss.div(divisor);
}

[[noreturn]] void refuse_items(const std::string& expected, const std::string& got) {
  throw Error(ErrorDetails{.problem = "backward(loss_sum, num_items) got a wrong number of items",
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

// At least one, so that a batch without items divides nothing by zero.
at::Tensor at_least_one(const at::Tensor& items) { return items.clamp_min(1); }

}  // namespace

void begin_micro_step(Window& window, const WindowRules& rules, const LoaderProgress& loader) {
  if (window.complete) {
    // Gradients that nobody used are still there, and go on to be gathered. Those already corrected
    // cannot: they do not add up with others any more.
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
  window.complete = window.micro_steps == 0;  // as before the first micro-step
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

at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, int64_t num_items) {
  if (num_items < 0) refuse_items("0 or more", c10::str(num_items));
  const auto items = static_cast<double>(num_items);
  if (window == nullptr) return divided(loss_sum, std::max(items, 1.0));
  Gathered& gathered = window->gathered;
  if (gathered.form == Gathered::Form::none) {
    // Until the total is known, as if all micro-steps were like the first. Keeps fp16 gradients in
    // the range of a mean.
    gathered.divisor *= std::max(items, 1.0);
  }
  take_form(gathered, Gathered::Form::items);
  gathered.items += items;
  if (gathered.device_divisor.defined()) return loss_sum.div(gathered.device_divisor);
  return divided(loss_sum, gathered.divisor);
}

at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, const at::Tensor& num_items) {
  check_items(num_items, loss_sum);
  if (num_items.is_cpu()) return weigh_items(window, loss_sum, num_items.item<int64_t>());

  const at::Tensor items = num_items.detach().reshape({});
  if (window == nullptr) return loss_sum.div(at_least_one(items));
  Gathered& gathered = window->gathered;
  if (gathered.form == Gathered::Form::none) {
    gathered.device_divisor = at_least_one(items).to(at::kFloat).mul(gathered.divisor);
  }
  take_form(gathered, Gathered::Form::items);
  gathered.device_items =
      gathered.device_items.defined() ? gathered.device_items.add(items) : items.clone();
  if (gathered.device_divisor.defined()) return loss_sum.div(gathered.device_divisor);
  return divided(loss_sum, gathered.divisor);
}

Correction correction_of(const Gathered& gathered) {
  switch (gathered.form) {
    case Gathered::Form::none:
      return {};
    case Gathered::Form::mean:
      return {.factor = gathered.divisor /
                        static_cast<double>(std::max<int64_t>(gathered.micro_steps, 1))};
    case Gathered::Form::items:
      break;
  }
  if (!gathered.device_items.defined()) {
    return {.factor = gathered.divisor / std::max(gathered.items, 1.0)};
  }
  const at::Tensor total = at_least_one(gathered.device_items.to(at::kDouble).add(gathered.items));
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
                             .got = "a scope inside another one",
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
    // Optimizers that wait for it wait no longer.
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
