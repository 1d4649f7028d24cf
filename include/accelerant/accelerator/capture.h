// A training step that is replayed as a CUDA graph, from Accelerator::capture.
//
//   auto step = accelerator.capture([&](const at::Tensor& data, const at::Tensor& target) {
//     auto window = accelerator.accumulate(model);
//     auto loss = torch::nll_loss(model(data), target);
//     accelerator.backward(loss);
//     accelerator.clip_grad_norm_(model, 1.0);
//     optimizer.step();
//     scheduler.step();
//     optimizer.zero_grad();
//     return loss;
//   });
//   for (auto&& [data, target] : loader) auto loss = step(data, target);
//
// A small model's step is hundreds of kernels that take less time than launching them. A graph
// launches them all at once. The first calls run as they are; then the step is captured, and from
// then on a call copies its inputs to where the graph reads them and replays it. Windows,
// schedules, checkpoints, learning rates set between calls, random numbers and skipped steps are
// the same as in a plain loop.
//
// The function's own code on the host does not run in a replay, so it must not depend on the host's
// data: no item(), no branch on values, no counters. What it does through the Accelerator and what
// was prepared counts in every call. Inputs come to the device. Other tensors that it reads must
// stay where they are.
//
// Steps that differ in the shapes of their inputs or in their place in a window have graphs of
// their own. Where a step cannot be captured (on a CPU, with LBFGS, if it waits for the device,
// ...) it runs eagerly, with the same results; why_not() and the log tell the reason.
// docs/capture.md says more.
//
// A CapturedStep owns the function and the graphs with their memory; what the function refers to
// must outlive it. It is movable, belongs to the thread of its Accelerator, and must not be called
// when that is gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/tensor/detail/refill.h"
#include "accelerant/tensor/nested.h"

namespace accelerant {

class Accelerator;

struct CaptureOptions {
  // Calls that run eagerly before the first capture, at least 1. Each kind of step runs once more
  // before its own capture. Default: 3, as PyTorch recommends.
  int64_t warmup = 3;

  // Graphs that are kept, at least 1; the one that was not used for longest makes room. Each holds
  // the memory of its inputs and outputs; the rest is shared. Default: 8.
  int64_t max_graphs = 8;
};

namespace detail {

class CaptureEngine;
struct Core;

// What a step returned: its tensors, and the data they were in.
struct StepOutputs {
  std::vector<at::Tensor> tensors = {};
  std::shared_ptr<const void> structure = {};
};

using StepBody = std::function<StepOutputs(const std::vector<at::Tensor>& inputs)>;

// Any CapturedStep.
class CapturedStepBase {
 public:
  // Whether the latest call was a replay.
  bool is_captured() const;

  // Why the step runs eagerly for good; empty as long as it need not.
  const std::string& why_not() const;

  // Graphs that are held now.
  int64_t graphs() const;

  CapturedStepBase(CapturedStepBase&&) noexcept;
  CapturedStepBase& operator=(CapturedStepBase&&) noexcept;

 protected:
  CapturedStepBase(const std::shared_ptr<Core>& core, const CaptureOptions& options);
  ~CapturedStepBase();

  StepOutputs run(std::vector<at::Tensor> inputs, const StepBody& body);

 private:
  std::unique_ptr<CaptureEngine> engine_;
};

}  // namespace detail

template <class F>
class CapturedStep : public detail::CapturedStepBase {
 public:
  // Runs the step once. What it returns (tensors, also nested, or nothing) comes back without
  // history for autograd, and stays as it is in later calls. Reading it waits for the device; not
  // reading it does not.
  template <NestedTensors... Inputs>
  requires std::invocable<F&, const Inputs&...>
  auto operator()(const Inputs&... inputs) {
    using Result = std::remove_cvref_t<std::invoke_result_t<F&, const Inputs&...>>;
    const std::tuple<Inputs...> given(inputs...);
    const detail::StepBody body = [function = function_, form = detail::emptied(given)](
                                      const std::vector<at::Tensor>& tensors) {
      const auto arguments = detail::refilled(form, tensors);
      if constexpr (std::is_void_v<Result>) {
        std::apply(*function, arguments);
        return detail::StepOutputs{};
      } else {
        static_assert(NestedTensors<Result>,
                      "Accelerator::capture: the step must return nothing, or a Tensor, or a "
                      "container or struct with nothing but Tensors inside");
        const Result result = std::apply(*function, arguments);
        return detail::StepOutputs{
            .tensors = detail::tensors_in(result),
            .structure = std::make_shared<const Result>(detail::emptied(result))};
      }
    };
    const detail::StepOutputs outputs = run(detail::tensors_in(given), body);
    if constexpr (!std::is_void_v<Result>) {
      return detail::refilled(*static_cast<const Result*>(outputs.structure.get()),
                              outputs.tensors);
    }
  }

 private:
  friend class Accelerator;

  CapturedStep(const std::shared_ptr<detail::Core>& core, F function, const CaptureOptions& options)
      : CapturedStepBase(core, options), function_(std::make_shared<F>(std::move(function))) {}

  std::shared_ptr<F> function_;
};

}  // namespace accelerant
