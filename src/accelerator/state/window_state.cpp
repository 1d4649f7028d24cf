#include "accelerator/state/window_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "accelerant/core/error.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "tensor/state_prefix.h"

namespace accelerant::detail {
namespace {

using nlohmann::json;

constexpr const char* kGradients = "gradients.";

// Calls f with each parameter of the prepared optimizers and its name, once.
template <class F>
void for_each_named_parameter(const Core& core, const optim::ParameterNames& names, F&& f) {
  std::unordered_set<const c10::TensorImpl*> seen;
  int64_t number = 0;
  for (const auto& optimizer : core.optimizers.all()) {
    for_each_parameter(optimizer->optimizer(), [&](at::Tensor& parameter) {
      const std::string* name = names.find(parameter);
      const std::string place = "parameter." + std::to_string(number++);
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) return;
      f(*optimizer, parameter, name != nullptr ? *name : place);
    });
  }
}

std::vector<int64_t> numbers_of(const Core& core, const Window& window) {
  std::vector<int64_t> numbers;
  for (const auto& [number, model] : core.models.numbered()) {
    if (std::ranges::find(window.models, model.get()) != window.models.end()) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

std::vector<const ModelState*> models_of(const Core& core, const std::vector<int64_t>& numbers) {
  std::vector<const ModelState*> result;
  for (const auto& [number, model] : core.models.numbered()) {
    if (std::ranges::find(numbers, number) != numbers.end()) result.push_back(model.get());
  }
  if (result.size() != numbers.size()) {
    throw Error(ErrorDetails{
        .problem = "A window of the checkpoint needs a model that is not prepared",
        .expected = "all models of the window (" + std::to_string(numbers.size()) + ")",
        .got = std::to_string(result.size()) + " of them prepared"});
  }
  return result;
}

void add(StateDict& tensors, const std::string& name, const at::Tensor& tensor) {
  if (tensor.defined()) tensors.insert(name, tensor);
}

at::Tensor find(const StateDict& tensors, const std::string& name, c10::Device device) {
  const at::Tensor* found = tensors.find(name);
  return found != nullptr ? found->to(device, found->scalar_type(), /*non_blocking=*/false,
                                      /*copy=*/true)
                          : at::Tensor();
}

json save_window(const Core& core, const Window& window, const std::string& prefix,
                 StateDict& tensors) {
  const Gathered& gathered = window.gathered;
  add(tensors, prefix + "device_divisor", gathered.device_divisor);
  add(tensors, prefix + "items", gathered.items.on_device);
  add(tensors, prefix + "own_items", gathered.own_items.on_device);
  return {{"models", numbers_of(core, window)},
          {"micro_steps", window.micro_steps},
          {"complete", window.complete},
          {"gathered", gathered.micro_steps},
          {"samples", gathered.samples},
          {"used", gathered.used},
          {"form", static_cast<int>(gathered.form)},
          {"divisor", gathered.divisor},
          {"items", gathered.items.on_host},
          {"own_items", gathered.own_items.on_host},
          {"own_backwards", gathered.own_backwards}};
}

void load_window(const Core& core, const json& values, const std::string& prefix,
                 const StateDict& tensors, Window& window) {
  const c10::Device device = *core.options.device;
  window.micro_steps = values.at("micro_steps").get<int64_t>();
  window.complete = values.at("complete").get<bool>();
  Gathered& gathered = window.gathered;
  gathered.micro_steps = values.at("gathered").get<int64_t>();
  gathered.samples = values.at("samples").get<int64_t>();
  gathered.used = values.at("used").get<bool>();
  gathered.form = static_cast<Gathered::Form>(values.at("form").get<int>());
  gathered.divisor = values.at("divisor").get<double>();
  gathered.items = {values.at("items").get<double>(), find(tensors, prefix + "items", device)};
  gathered.own_items = {values.at("own_items").get<double>(),
                        find(tensors, prefix + "own_items", device)};
  gathered.own_backwards = values.at("own_backwards").get<int64_t>();
  gathered.device_divisor = find(tensors, prefix + "device_divisor", device);
}

std::string prefix_of(std::size_t window) { return "windows." + std::to_string(window) + "."; }

}  // namespace

void require_no_step_is_due(const Core& core) {
  const auto& windows = core.accumulation.windows();
  const auto optimizers = core.optimizers.all();
  const bool due =
      std::ranges::any_of(windows, [](const auto& window) { return window->awaits_step(); }) ||
      std::ranges::any_of(optimizers, [](const auto& optimizer) {
        return optimizer->awaits_step() || optimizer->has_noted_clipping();
      });
  if (!due) return;
  throw Error(
      ErrorDetails{.problem = "The state cannot be saved between backward() and step()",
                   .expected = "a complete update, or a window with more micro-steps to come",
                   .got = "complete gradients that are not used yet",
                   .hint = "call save_state() after optimizer.step()"});
}

NamedState save_windows(const Core& core, const optim::ParameterNames& names) {
  NamedState state;
  json windows = json::array();
  for (const auto& window : core.accumulation.windows()) {
    if (!window->has_unused_gradients()) continue;
    windows.push_back(save_window(core, *window, prefix_of(windows.size()), state.tensors));
  }
  std::unordered_set<const OptimizerState*> done;  // their gradients need not be saved
  for (const auto& optimizer : core.optimizers.all()) {
    if (optimizer->has_used_gradients() || optimizer->has_cleared_gradients()) {
      done.insert(optimizer.get());
    }
  }
  StateDict gradients;
  for_each_named_parameter(
      core, names,
      [&](const OptimizerState& optimizer, const at::Tensor& parameter, const std::string& name) {
        if (!done.contains(&optimizer)) add(gradients, name, parameter.grad());
      });
  add_with_prefix(state.tensors, kGradients, gradients);
  state.values = json{{"windows", std::move(windows)}};
  return state;
}

bool has_half_windows(const json& values) { return !values.at("windows").empty(); }

void load_windows(Core& core, const optim::ParameterNames& names, const NamedState& state) {
  core.accumulation.start_over(core.window_rules(), core.loaders.progress());
  for (const auto& optimizer : core.optimizers.all()) optimizer->give_up_step();
  const json& windows = state.values->at("windows");
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const auto window = core.accumulation.window_of(
        models_of(core, windows[i].at("models").get<std::vector<int64_t>>()));
    load_window(core, windows[i], prefix_of(i), state.tensors, *window);
    core.accumulation.go_on_with(window);
    for (const auto& optimizer : core.optimizers.all()) {
      if (optimizer->is_concerned_by(*window)) optimizer->join(window);
    }
  }
  const StateDict gradients = with_prefix(state.tensors, kGradients);
  for_each_named_parameter(
      core, names, [&](const OptimizerState&, at::Tensor& parameter, const std::string& name) {
        at::Tensor& gradient = parameter.mutable_grad();
        const at::Tensor saved = find(gradients, name, parameter.device());
        if (!saved.defined()) {
          gradient.reset();
        } else {
          gradient = saved;
        }
      });
}

}  // namespace accelerant::detail
