// The implementation of a CapturedStep. Decides for each call whether it runs eagerly, is captured,
// or replays a graph.
//
// A StepKey identifies the graph that a call needs. While the step runs eagerly, a StepRecorder
// learns which windows and optimizers it uses. A capture runs the step once more without any
// effect: HostState restores the host, and what the step did there is kept as HostActions. A replay
// repeats those actions, some before the graph is launched and the others after. Gradients that
// outlive a step are KeptGradients, because all graphs must find them at the same address.
//
// With several processes, all of them agree on what each call does (step_agreement.h), and
// gradients are exchanged on the stream of the step (dist/captured_exchange.h). Graphs use the
// World's groups, so they are dropped right before these are closed (WorldAccess::before_close).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerant/accelerator/capture.h"
#include "accelerator/capture/graph_backend.h"
#include "accelerator/capture/kept_gradients.h"
#include "accelerator/capture/recorder.h"
#include "accelerator/capture/step_agreement.h"
#include "accelerator/capture/step_key.h"
#include "accelerator/core.h"

namespace accelerant::detail {

class CaptureEngine {
 public:
  CaptureEngine(const std::shared_ptr<Core>& core, const CaptureOptions& options);
  CaptureEngine(const CaptureEngine&) = delete;
  CaptureEngine& operator=(const CaptureEngine&) = delete;

  StepOutputs run(std::vector<at::Tensor> inputs, const StepBody& body);

  bool is_replay() const { return is_replay_; }
  const std::string& why_not() const { return why_not_; }
  int64_t graphs() const { return static_cast<int64_t>(graphs_.size()); }

 private:
  // A captured step. Its tensors keep their addresses.
  struct Captured {
    StepKey key = {};
    uint64_t keys_of_all = 0;  // key over all processes
    std::vector<at::Tensor> inputs = {};
    std::vector<at::Tensor> gradients = {};  // gradients that outlive the step
    StepOutputs outputs = {};
    std::vector<at::Tensor> memory = {};  // used by the optimizers' steps
    HostActions actions = {};
    std::unique_ptr<StepGraph> graph = nullptr;  // last member, so that it is destroyed first
  };
  using Graphs = std::list<Captured>;  // most recently used first

  // What this process can do in this call.
  struct Offer {
    StepOffer offer = StepOffer::run;
    std::optional<StepKey> key = std::nullopt;  // nullopt if no graph could run the step
    std::string reason = {};                    // why it cannot do more, if worth reporting
  };

  void drop_graphs();
  void take_exchanges_along(const Core& core);
  // Returns whether there were any.
  bool forget_graphs_of_other_surroundings(const Core& core);
  Offer offer_for(const Core& core, const std::vector<at::Tensor>& inputs,
                  bool keeps_gradients) const;
  bool has_graph_for(const StepKey& key) const;
  Captured* find(const StepKey& key, uint64_t keys_of_all);
  bool may_capture(const StepKey& key) const;

  StepOutputs run_eagerly(Core& core, const Offer& offer, const std::vector<at::Tensor>& inputs,
                          const StepBody& body, bool keeps_gradients);
  // Returns whether there was anything new.
  bool learn(const StepRecorder& recorder);

  // Returns null on failure, which is permanent.
  Captured* capture(Core& core, const StepKey& key, uint64_t keys_of_all,
                    const std::vector<at::Tensor>& inputs, const StepBody& body,
                    bool keeps_gradients);
  void give_up_exchanges(const Core& core);
  std::string why_it_cannot_be(const Core& core, const std::vector<at::Tensor>& inputs) const;
  void run_captured(Core& core, Captured& captured, const StepBody& body, bool keeps_gradients);
  StepOutputs replay(Core& core, Captured& captured, const std::vector<at::Tensor>& inputs);
  void warn_if_often_uncaptured(const std::string& reason);
  // Gives up: at once with one process; with several, all of them do so in the next call.
  void decline(const Core& core, const std::string& reason);
  void give_up(const std::string& reason);

  std::weak_ptr<Core> core_;
  CaptureOptions options_;
  std::unique_ptr<GraphBackend> backend_;  // null: the step runs eagerly, and why_not_ says why
  std::string why_not_;
  std::string declined_;           // why this process will give up in the next call
  std::shared_ptr<void> closing_;  // drops the graphs before their connections are closed

  int64_t eager_calls_ = 0;
  int64_t uncaptured_calls_ = 0;  // consecutive calls that could not be captured
  Surroundings surroundings_;
  std::size_t taken_exchanges_ = 0;  // fingerprint of the exchanges on the step's stream
  // What the step was seen to use.
  std::vector<std::shared_ptr<Window>> windows_;
  std::vector<OptimizerState*> optimizers_;
  std::set<StepKey> seen_;    // kinds of steps that have run eagerly
  std::set<StepKey> missed_;  // have a graph, but not with the other processes' keys
  KeptGradients kept_;
  Graphs graphs_;
  int64_t captures_ = 0;
  int64_t replays_ = 0;
  bool is_replay_ = false;
};

}  // namespace accelerant::detail
