// What a step does on the host: noted while it is captured, and done again with every replay of its
// graph.
//
// While a step runs, windows, backward, optimizers and schedules tell it of every change they make
// to their own state, through StepCapture. What the device does is not its concern.
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
  // Whether the optimizers' steps were applied: a flag for each step, on the device; undefined for
  // those that cannot be skipped.
  using Flags = std::vector<at::Tensor>;

  // What comes before the first step of an optimizer, for example schedules that set its learning
  // rate.
  void run_before_launch() const;
  void run_after_launch(const Flags& flags) const;

  // As the graph leaves them.
  const Flags& flags() const { return flags_; }

  // Those that the step asks to step.
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
    // The device does nothing yet, and what is noted is kept. Otherwise the step runs as ever, and
    // the recorder only learns which windows and optimizers it has.
    bool capturing = false;

    // Gradients stay where they are: zero_grad() fills them with zeros.
    bool keeps_gradients = false;

    // Optimizers must step by what lies on the device alone.
    bool needs_steps_on_device = false;
  };

  explicit StepRecorder(const Options& options) : options_(options) {}

  bool is_capturing() const { return options_.capturing; }
  bool keeps_gradients() const { return options_.keeps_gradients; }
  bool needs_steps_on_device() const { return options_.needs_steps_on_device; }

  // Replays do it: before the graph is launched, or after, once an optimizer has stepped.
  void note(std::function<void()> action);
  void note_schedule(const SchedulerState& schedule, std::function<void()> action);
  void note_window(const std::shared_ptr<Window>& window);
  void note_step(OptimizerState& optimizer, const StepResult& result);

  // The step does what a graph cannot hold. The first reason counts.
  void refuse(const std::string& reason);

  const std::string& refusal() const { return refusal_; }
  const std::vector<std::shared_ptr<Window>>& windows() const { return windows_; }
  const HostActions& actions() const { return actions_; }

 private:
  Options options_;
  HostActions actions_;
  bool has_stepped_ = false;
  std::vector<const SchedulerState*> schedules_;  // that have stepped since then
  std::vector<std::shared_ptr<Window>> windows_;  // that it has entered
  std::string refusal_;
};

// The recorder is told of what happens while this lives.
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
