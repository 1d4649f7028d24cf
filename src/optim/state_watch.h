// Notifies objects when saving or loading reads or writes the state of an optimizer.
//
// An object that keeps part of an optimizer's state elsewhere (step counts on the device) derives
// from StateWatcher. It is found by the address of the optimizer, which must outlive it.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace torch::optim {
class Optimizer;
}

namespace accelerant::optim::detail {

class StateWatcher {
 public:
  explicit StateWatcher(const torch::optim::Optimizer& optimizer);
  virtual ~StateWatcher();
  StateWatcher(const StateWatcher&) = delete;
  StateWatcher& operator=(const StateWatcher&) = delete;

  virtual void before_state_is_read() = 0;
  virtual void after_state_was_written() = 0;

  // Where it keeps the state, if not beside the parameters.
  virtual std::optional<c10::Device> home_of_state() const { return std::nullopt; }

 private:
  const torch::optim::Optimizer* optimizer_;
};

void announce_reading(const torch::optim::Optimizer& optimizer);
void announce_written(const torch::optim::Optimizer& optimizer);
std::optional<c10::Device> home_of_state(const torch::optim::Optimizer& optimizer);

}  // namespace accelerant::optim::detail
