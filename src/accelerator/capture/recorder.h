// What a step does on the host: recorded while it is captured, and repeated with every replay of
// its graph.
//
// While a step runs, windows, backward, optimizers and schedules report every change to their own
// state through StepCapture. Work of the device is not recorded here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accelerant/amp/step_result.h"

namespace accelerant::detail {

class OptimizerState;
class SchedulerState;
class StepCapture;
struct Window;

// The host's part of a captured step.
class HostActions {
 public:
  // Whether the optimizers' steps were skipped: one flag per step, on the device; undefined for a
  // step that cannot be skipped.
  using Flags = std::vector<at::Tensor>;

  // Actions before the first step of an optimizer, for example schedules that set its learning
  // rate.
  void run_before_launch() const;
  void run_after_launch(const Flags& flags) const;

  // The flags as the graph leaves them.
  const Flags& flags() const { return flags_; }

  // The optimizers that step.
  const std::vector<OptimizerState*>& optimizers() const { return optimizers_; }

 private:
  friend class StepRecorder;

  std::vector<std::function<void()>> before_;
  std::vector<std::function<void(const Flags&)>> after_;
  Flags flags_;
  std::vector<OptimizerState*> optimizers_;
};

class StepRecorder {
 public:
  struct Options {
    // The device does nothing yet, and actions are recorded. Otherwise the step runs normally, and
    // the recorder only learns which windows and optimizers it uses.
    bool capturing = false;

    // Gradients keep their addresses: zero_grad() fills them with zeros.
    bool keeps_gradients = false;

    // Optimizers must step using only data on the device.
    bool needs_steps_on_device = false;
  };

  explicit StepRecorder(const Options& options) : options_(options) {}

  bool is_capturing() const { return options_.capturing; }
  bool keeps_gradients() const { return options_.keeps_gradients; }
  bool needs_steps_on_device() const { return options_.needs_steps_on_device; }

  // Replays run the action: before the graph is launched or, once an optimizer has stepped, after.
  void note(std::function<void()> action);
  void note_schedule(const SchedulerState& schedule, std::function<void()> action);
  void note_window(const std::shared_ptr<Window>& window);
  void note_step(OptimizerState& optimizer, const StepResult& result);

  // The step does something that a graph cannot contain. Only the first reason is kept.
  void refuse(const std::string& reason);

  const std::string& refusal() const { return refusal_; }
  const std::vector<std::shared_ptr<Window>>& windows() const { return windows_; }
  const HostActions& actions() const { return actions_; }

 private:
  Options options_;
  HostActions actions_;
  bool has_stepped_ = false;
  std::vector<const SchedulerState*> schedules_;  // schedules that have stepped since then
  std::vector<std::shared_ptr<Window>> windows_;  // windows that the step has entered
  std::string refusal_;
};

// Reports to the recorder while this object lives.
class RecorderScope {
 public:
  RecorderScope(StepCapture& capture, StepRecorder& recorder);
  ~RecorderScope();
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  StepCapture& capture_;
  StepRecorder* before_;
};

}  // namespace accelerant::detail
