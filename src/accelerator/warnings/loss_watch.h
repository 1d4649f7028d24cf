// Notices a loss that is inf or nan where no loss scaling would skip the step.
//
// On the CPU every loss is looked at. On a GPU that would make the host wait, so one loss in 64 is
// copied and looked at when it has arrived: parameters that are nan stay nan, and so do the losses.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>

namespace accelerant::detail {

struct Core;

class LossWatch {
 public:
  // A backward with this loss begins. While a step is captured the loss has no value yet, and is
  // kept for look_in_replays().
  void begin_backward(Core& core, const at::Tensor& loss);

  // An optimizer has stepped in a step that is captured: what follows is done after each replay,
  // when the loss has a value.
  void look_in_replays(Core& core);

 private:
  void look(Core& core, const at::Tensor& loss);
  void send_for(const at::Tensor& loss);
  void read_arrived(Core& core);

  at::Tensor captured_;   // of the step that is being captured; undefined: none
  int64_t calls_ = 0;     // with a loss on a device
  at::Tensor copy_;       // pinned; undefined: none is under way
  int64_t backward_ = 0;  // the number of the one it is from
  std::optional<c10::Event> arrived_;
};

}  // namespace accelerant::detail
