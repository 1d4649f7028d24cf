// What lies behind a CapturedStep: decides for each call whether it runs eagerly, is captured, or replays a graph.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "accelerant/accelerator/capture.h"
#include "accelerator/capture/graph_backend.h"
#include "accelerator/capture/kept_gradients.h"
#include "accelerator/capture/recorder.h"
#include "accelerator/capture/step_key.h"
#include "accelerator/core.h"

namespace accelerant::detail {

class CaptureEngine {
 public:
  CaptureEngine(const std::shared_ptr<Core>& core, const CaptureOptions& options);

  StepOutputs run(std::vector<at::Tensor> inputs, const StepBody& body);

  bool is_replay() const { return is_replay_; }
  const std::string& why_not() const { return why_not_; }
  int64_t graphs() const { return static_cast<int64_t>(graphs_.size()); }

 private:
  // A captured step. Its tensors keep their addresses.
  struct Captured {
    StepKey key = {};
    std::vector<at::Tensor> inputs = {};
    std::vector<at::Tensor> gradients = {};  // where they live longer than the step
    StepOutputs outputs = {};
    std::vector<at::Tensor> memory = {};  // of optimizers' steps
    HostActions actions = {};
    std::unique_ptr<StepGraph> graph = nullptr;  // last, so that it is gone first
  };
  using Graphs = std::list<Captured>;  // the latest used first

  void forget_graphs_of_other_surroundings(const Core& core);
  Captured* find(const StepKey& key);
  bool may_capture(const StepKey& key) const;

  // `key` is null for a step that no graph could serve.
  StepOutputs run_eagerly(Core& core, const std::vector<at::Tensor>& inputs, const StepBody& body,
                          bool keeps_gradients, const StepKey* key = nullptr);
  // Whether there was anything new.
  bool learn(const StepRecorder& recorder);

  StepOutputs run_eagerly_because(Core& core, const std::string& reason,
                                  const std::vector<at::Tensor>& inputs, const StepBody& body,
                                  bool keeps_gradients);

  // Null if it fails, which is for good.
  Captured* capture(Core& core, const StepKey& key, const std::vector<at::Tensor>& inputs,
                    const StepBody& body, bool keeps_gradients);
  std::string why_it_cannot_be(const std::vector<at::Tensor>& inputs) const;
  void run_captured(Core& core, Captured& captured, const StepBody& body, bool keeps_gradients);
  StepOutputs replay(Core& core, Captured& captured, const std::vector<at::Tensor>& inputs);
  void give_up(const std::string& reason);

  std::weak_ptr<Core> core_;
  CaptureOptions options_;
  std::unique_ptr<GraphBackend> backend_;  // null: the step runs eagerly, and why_not_ says why
  std::string why_not_;

  int64_t eager_calls_ = 0;
  int64_t calls_in_vain_ = 0;  // in a row that could not be captured as things stood
  Surroundings surroundings_;
  // What the step was seen to use.
  std::vector<std::shared_ptr<Window>> windows_;
  std::vector<OptimizerState*> optimizers_;
  std::set<StepKey> seen_;  // kinds of steps that have run eagerly
  KeptGradients kept_;
  Graphs graphs_;
  int64_t captures_ = 0;
  int64_t replays_ = 0;
  bool is_replay_ = false;
};

}  // namespace accelerant::detail
