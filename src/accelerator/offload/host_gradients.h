// The gradients of an optimizer whose state is in host memory: they leave the device as soon as
// they are final, while backward computes others, and each becomes its parameter's grad() there.
//
// So whatever reads or changes gradients between backward and the step works on host memory, and
// the device has its memory for them back. A gradient that is not final stays on the device: in the
// middle of a window, and under an exchange between processes until that is over. If another
// backward adds to gradients that have left, they are brought back first.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace accelerant::detail {

struct Core;
struct Window;
class UpdateThread;

class HostGradients {
 public:
  explicit HostGradients(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
  ~HostGradients();
  HostGradients(const HostGradients&) = delete;
  HostGradients& operator=(const HostGradients&) = delete;

  // Between these two, gradients leave as they become final. end_leaving() waits until they have
  // arrived.
  void begin_leaving();
  void end_leaving();
  bool is_leaving();

  // Those that leave from now on are handed on, each when it has arrived.
  void hand_to(UpdateThread* updates);

  // Moves the gradients that are still on the device, and waits for them. Sparse ones stay. Returns
  // whether there were any.
  bool fetch_all();

  // Moves them back to the device. Returns whether there were any.
  bool take_back_all();

 private:
  class Hook;

  struct Entry {
    at::Tensor parameter = {};
    at::Tensor on_host = {};                               // the memory for its gradients
    std::shared_ptr<HostGradients*> hook_owner = nullptr;  // for its hook; null without one
  };

  // The copies from one device.
  struct Lane {
    explicit Lane(c10::Device of);

    c10::Device device;
    c10::Stream stream;
    c10::Event computed;  // on the current stream
    bool is_in_use = false;
  };

  static bool may_leave(const at::Tensor& gradient);
  Entry& entry_of(const at::Tensor& parameter);
  void attach();
  static void detach(Entry& entry);
  void note_final(const at::Tensor& parameter);
  void leave(Entry& entry);
  static void make_room(Entry& entry, const at::Tensor& gradient);
  Lane& lane_of(c10::Device device);
  void wait_for_copies();  // holds the mutex

  torch::optim::Optimizer& optimizer_;
  std::size_t attached_to_ = 0;  // fingerprint of the parameters that have hooks
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  // Of what follows, and of the gradients that leave: autograd has one thread per device, which may
  // go on after another one has failed.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool is_leaving_ = false;
  UpdateThread* updates_ = nullptr;
};

// While it lives, a backward runs after which the gradients of optimizers at a boundary are final.
// Created before anything looks at the gradients of the backwards so far.
class LeavingGradients {
 public:
  explicit LeavingGradients(Core& core);
  ~LeavingGradients();
  LeavingGradients(const LeavingGradients&) = delete;
  LeavingGradients& operator=(const LeavingGradients&) = delete;

  // The backward is about to run: updates may follow it. `window`: the open one, or null.
  void begin_updates(const Window* window) const;

  // Waits for the copies and updates. Otherwise, after an exception, the destructor does.
  void finish();

 private:
  void give_up() noexcept;

  Core* core_;
};

}  // namespace accelerant::detail
