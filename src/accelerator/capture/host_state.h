// The host's state between two steps of a training. Saved before a step is captured and restored
// after, since the capture itself trains nothing.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"

namespace accelerant::detail {

// The state of models whose gradients are exchanged between processes.
class ExchangeState {
 public:
  explicit ExchangeState(const Core& core);

  void restore(Core& core) const;

 private:
  struct OfModel {
    std::weak_ptr<ModelState> model;  // graphs hold this, and must not keep the connections open
    bool buffers_are_due;
    bool has_local_forward;
  };

  std::vector<OfModel> models_;
};

class HostState {
 public:
  explicit HostState(const Core& core);

  void restore(Core& core) const;

 private:
  std::vector<std::pair<std::shared_ptr<Window>, Window>> windows_;
  std::shared_ptr<Window> latest_window_;
  std::vector<std::pair<std::shared_ptr<OptimizerState>, OptimizerState::Progress>> optimizers_;
  ExchangeState exchanges_;
  bool scaler_has_checks_;
  int64_t scaler_updates_;
  LoopCounts counts_;
};

}  // namespace accelerant::detail
