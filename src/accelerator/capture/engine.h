// What lies behind a CapturedStep: decides for each call whether it runs eagerly, is captured, or
// replays a graph.
//
// A StepKey says which graph a call needs. While the step runs eagerly, a StepRecorder learns which
// windows and optimizers it has. A capture runs it once more without any effect: HostState puts the
// host back, and what the step did there is kept as HostActions. A replay does those again, some
// before the graph is launched and the others after. Gradients that outlive a step are
// KeptGradients, as all graphs must find them in the same place.
//
// With several processes all of them agree on what each call does (step_agreement.h), and gradients
// are exchanged on the stream of the step (dist/captured_exchange.h). Graphs hold on to the World's
// groups, so they are dropped right before these end (WorldAccess::before_close).
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
    uint64_t keys_of_all = 0;  // processes
    std::vector<at::Tensor> inputs = {};
    std::vector<at::Tensor> gradients = {};  // where they live longer than the step
    StepOutputs outputs = {};
    std::vector<at::Tensor> memory = {};  // of optimizers' steps
    HostActions actions = {};
    std::unique_ptr<StepGraph> graph = nullptr;  // last, so that it is gone first
  };
  using Graphs = std::list<Captured>;  // the latest used first

  // What this process can do in a call.
  struct Offer {
    StepOffer offer = StepOffer::run;
    std::optional<StepKey> key = std::nullopt;  // none for a step that no graph could serve
    std::string reason = {};                    // why it is no more, if that is to be told
  };

  void drop_graphs();
  void take_exchanges_along(const Core& core);
  // Whether there were any.
  bool forget_graphs_of_other_surroundings(const Core& core);
  Offer offer_for(const Core& core, const std::vector<at::Tensor>& inputs,
                  bool keeps_gradients) const;
  bool has_graph_for(const StepKey& key) const;
  Captured* find(const StepKey& key, uint64_t keys_of_all);
  bool may_capture(const StepKey& key) const;

  StepOutputs run_eagerly(Core& core, const Offer& offer, const std::vector<at::Tensor>& inputs,
                          const StepBody& body, bool keeps_gradients);
  // Whether there was anything new.
  bool learn(const StepRecorder& recorder);

  // Null if it fails, which is for good.
  Captured* capture(Core& core, const StepKey& key, uint64_t keys_of_all,
                    const std::vector<at::Tensor>& inputs, const StepBody& body,
                    bool keeps_gradients);
  void give_up_exchanges(const Core& core);
  std::string why_it_cannot_be(const Core& core, const std::vector<at::Tensor>& inputs) const;
  void run_captured(Core& core, Captured& captured, const StepBody& body, bool keeps_gradients);
  StepOutputs replay(Core& core, Captured& captured, const std::vector<at::Tensor>& inputs);
  void tell_if_often_in_vain(const std::string& reason);
  // At once with one process; with several in the next call, in all.
  void decline(const Core& core, const std::string& reason);
  void give_up(const std::string& reason);

  std::weak_ptr<Core> core_;
  CaptureOptions options_;
  std::unique_ptr<GraphBackend> backend_;  // null: the step runs eagerly, and why_not_ says why
  std::string why_not_;
  std::string declined_;           // why this process will give up, in the next call
  std::shared_ptr<void> closing_;  // drops the graphs before the connections end that they use

  int64_t eager_calls_ = 0;
  int64_t calls_in_vain_ = 0;  // in a row that could not be captured as things stood
  Surroundings surroundings_;
  std::size_t taken_exchanges_ = 0;  // fingerprint of those whose gradients come where it runs
  // What the step was seen to use.
  std::vector<std::shared_ptr<Window>> windows_;
  std::vector<OptimizerState*> optimizers_;
  std::set<StepKey> seen_;    // kinds of steps that have run eagerly
  std::set<StepKey> missed_;  // with a graph, but not for what other processes had at the same time
  KeptGradients kept_;
  Graphs graphs_;
  int64_t captures_ = 0;
  int64_t replays_ = 0;
  bool is_replay_ = false;
};

}  // namespace accelerant::detail
