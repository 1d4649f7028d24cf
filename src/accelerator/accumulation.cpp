#include "accelerator/accumulation.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerant/core/error.h"

namespace accelerant::detail {
namespace {

void start_afresh(Window& window) {
  Window fresh;
  fresh.models = std::move(window.models);
  window = std::move(fresh);
  window.complete = false;
}

// How many micro-steps the window will have, as far as can be told at its start: losses divided by
// the right number at once need no correction later.
double expected_steps(const WindowRules& rules, const LoaderProgress& loader) {
  int64_t steps = rules.steps;
  if (rules.sync_with_dataloader && loader.batches_left && *loader.batches_left > 0) {
    steps = std::min(steps, *loader.batches_left);
  }
  return static_cast<double>(steps);
}

void take_form(Window& window, Window::Form form) {
  if (window.form == Window::Form::none) window.form = form;
  if (window.form == form) return;
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

// At least one, so that a batch without items divides nothing by zero.
at::Tensor at_least_one(const at::Tensor& items) { return items.clamp_min(1); }

}  // namespace

void begin_micro_step(Window& window, const WindowRules& rules, const LoaderProgress& loader) {
  if (window.complete || window.micro_steps == 0) start_afresh(window);
  if (window.micro_steps == 0) window.divisor = expected_steps(rules, loader);
  ++window.micro_steps;
  window.complete =
      window.micro_steps >= rules.steps || (rules.sync_with_dataloader && loader.is_last);
  window.in_scope = true;
  window.backward_ran = false;
  window.stepped = false;
  window.latest_samples = loader.samples;
  window.samples += loader.samples;
}

bool end_micro_step(Window& window, bool failed) {
  window.in_scope = false;
  if (failed && !window.stepped) {
    --window.micro_steps;
    window.samples -= window.latest_samples;
    window.complete = false;
    if (window.micro_steps > 0) return false;
    window.holds_gradients = false;
    return true;
  }
  if (window.complete) window.holds_gradients = false;
  return false;
}

at::Tensor weigh_mean(Window* window, const at::Tensor& loss) {
  if (window == nullptr) return loss;
  take_form(*window, Window::Form::mean);
  return divided(loss, window->divisor);
}

at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, int64_t num_items) {
  if (num_items < 0) {
    throw Error(ErrorDetails{.problem = "backward(loss_sum, num_items) got a wrong number of items",
                             .expected = "0 or more",
                             .got = c10::str(num_items)});
  }
  const auto items = static_cast<double>(num_items);
  if (window == nullptr) return divided(loss_sum, std::max(items, 1.0));
  if (window->form == Window::Form::none) {
    // Until the total is known, as if all micro-steps were like the first. Keeps fp16 gradients in
    // the range of a mean.
    window->divisor *= std::max(items, 1.0);
  }
  take_form(*window, Window::Form::items);
  window->items += items;
  if (window->device_divisor.defined()) return loss_sum.div(window->device_divisor);
  return divided(loss_sum, window->divisor);
}

at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, const at::Tensor& num_items) {
  if (!num_items.defined() || num_items.numel() != 1) {
    throw Error(ErrorDetails{.problem = "backward(loss_sum, num_items) got a wrong number of items",
                             .expected = "a tensor with one element",
                             .got = num_items.defined() ? c10::str("shape ", num_items.sizes())
                                                        : "an undefined tensor"});
  }
  if (num_items.is_cpu()) return weigh_items(window, loss_sum, num_items.item<int64_t>());

  const at::Tensor items = num_items.detach().reshape({}).to(at::kFloat);
  if (window == nullptr) return loss_sum.div(at_least_one(items));
  if (window->form == Window::Form::none) {
    window->device_divisor = at_least_one(items).mul(window->divisor);
  }
  take_form(*window, Window::Form::items);
  window->device_items = window->device_items.defined() ? window->device_items.add(items) : items;
  if (window->device_divisor.defined()) return loss_sum.div(window->device_divisor);
  return divided(loss_sum, window->divisor);
}

Correction correction_of(const Window& window) {
  switch (window.form) {
    case Window::Form::none:
      return {};
    case Window::Form::mean:
      return {.factor = window.divisor / static_cast<double>(window.micro_steps)};
    case Window::Form::items:
      break;
  }
  if (!window.device_items.defined() && !window.device_divisor.defined()) {
    return {.factor = window.divisor / std::max(window.items, 1.0)};
  }
  const at::Tensor& device_items = window.device_items;
  const at::Tensor total = at_least_one(device_items.add(window.items));
  if (window.device_divisor.defined()) return {.device_factor = window.device_divisor.div(total)};
  return {.device_factor = total.reciprocal().mul(window.divisor)};
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

bool Accumulation::holds_gradients() const {
  return std::any_of(windows_.begin(), windows_.end(),
                     [](const auto& window) { return window->holds_gradients; });
}

void Accumulation::abandon() {
  for (const auto& window : windows_) start_afresh(*window);
}

void Accumulation::forget(const ModelState& model) {
  std::erase_if(windows_, [&](const auto& window) {
    return std::binary_search(window->models.begin(), window->models.end(), &model);
  });
}

void Accumulation::clear() {
  windows_.clear();
  latest_.reset();
}

}  // namespace accelerant::detail
