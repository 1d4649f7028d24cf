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
// A small model's step consists of hundreds of kernels that take less time to run than to launch. A
// graph launches all of them at once. The first calls run eagerly, then the step is captured. From
// then on a call copies its inputs to where the graph reads them and replays the graph. Windows,
// schedules, checkpoints, learning rates set between calls, random numbers and skipped steps behave
// as in a plain loop.
//
// A replay does not run the function's own host code, so that code must not depend on data: no
// item(), no branch on values, no counters. Everything it does through the Accelerator and through
// prepared objects takes effect in every call. Inputs are moved to the device. Other tensors that
// it reads must keep their memory.
//
// Each combination of input shapes and position in a window gets its own graph. A step that cannot
// be captured (on a CPU, with LBFGS, if it waits for the device, ...) runs eagerly, with the same
// results; why_not() and the log give the reason. See docs/capture.md.
//
// A CapturedStep owns the function and the graphs with their memory. Whatever the function refers
// to must outlive it. It is movable, belongs to the thread of its Accelerator, and must not be
// called after the Accelerator is destroyed.
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

#include "accelerant/core/detail/own_process.h"
#include "accelerant/tensor/detail/refill.h"
#include "accelerant/tensor/nested.h"

namespace accelerant {

class Accelerator;

struct CaptureOptions {
  // Calls that run eagerly before the first capture, at least 1. Each kind of step runs eagerly
  // once more before its own capture. Default: 3, as PyTorch recommends.
  int64_t warmup = 3;

  // Maximum number of graphs to keep, at least 1; the least recently used one is dropped first.
  // Each graph holds the memory of its inputs and outputs; the rest is shared. Default: 8.
  int64_t max_graphs = 8;

  // Let cuDNN time its algorithms in the warm-up calls, which take longer for it, and keep the
  // fastest for the graph. Counts for shapes that no convolution had before. Not done if
  // PerformanceOptions::cudnn_benchmark is false or deterministic algorithms are wanted. The choice,
  // and with it the last bits of results, may differ between runs. Default: true.
  bool tune = true;
};

namespace detail {

class CaptureEngine;
struct Core;

// The result of a step: its tensors, and the value that contained them.
struct StepOutputs {
  std::vector<at::Tensor> tensors = {};
  std::shared_ptr<const void> structure = {};
};

using StepBody = std::function<StepOutputs(const std::vector<at::Tensor>& inputs)>;

// The part of a CapturedStep that does not depend on its function.
class CapturedStepBase {
 public:
  // Whether the latest call was a replay.
  bool is_captured() const;

  // Why the step will always run eagerly; empty while it may still be captured.
  const std::string& why_not() const;

  // Number of graphs held now.
  int64_t graphs() const;

  CapturedStepBase(CapturedStepBase&&) noexcept;
  CapturedStepBase& operator=(CapturedStepBase&&) noexcept;

 protected:
  CapturedStepBase(const std::shared_ptr<Core>& core, const CaptureOptions& options);
  ~CapturedStepBase();

  StepOutputs run(std::vector<at::Tensor> inputs, const StepBody& body);

 private:
  std::unique_ptr<CaptureEngine, DeleteInOwnProcess> engine_;
};

}  // namespace detail

template <class F>
class CapturedStep : public detail::CapturedStepBase {
 public:
  // Runs the step once. The result (tensors, also nested, or nothing) comes back detached from
  // autograd, and later calls do not change it. Reading it waits for the device.
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
