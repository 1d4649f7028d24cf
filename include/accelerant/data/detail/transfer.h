// Moves batches to their device, one batch ahead of the loop. Part of the loader.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <memory>
#include <utility>

#include "accelerant/data/detail/placement.h"
#include "accelerant/tensor/nested.h"

namespace accelerant::data::detail {

// Work on a device that a batch must wait for. Empty: none.
struct Arrival;

// A batch whose tensors can be found and replaced.
template <class Batch>
concept Movable = UnderstoodNesting<Batch> && std::copy_constructible<Batch>;

class Transfer {
 public:
  explicit Transfer(const Placement& placement);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Whether the device runs asynchronously, so that copying should begin one batch ahead.
  bool copies_ahead() const { return side_stream_ != nullptr; }
  bool moves() const { return moves_; }
  bool leaves_host() const { return moves_ && !device_.is_cpu(); }

  // Called in the thread that made the batch: pins the batch if it will be copied from there, and
  // records the device work it depends on. `made_in_worker`: the loop's thread will use the batch.
  template <class Batch>
  std::shared_ptr<Arrival> prepare(Batch& batch, bool made_in_worker) const {
    if constexpr (Movable<Batch>) {
      if (copies_ahead()) {
        batch = map_tensors(batch, [&](const at::Tensor& tensor) { return pin(tensor); });
      }
      if (made_in_worker) {
        c10::Device device(c10::DeviceType::CPU);
        visit_tensors(batch, [&](const at::Tensor& tensor) {
          if (is_on_accelerator(tensor)) device = tensor.device();
        });
        return record_current(device);
      }
    }
    return nullptr;
  }

  // Called in the loop's thread, one batch ahead: starts the copy.
  template <class Batch>
  std::shared_ptr<Arrival> send(Batch& batch, const std::shared_ptr<Arrival>& made) const {
    if constexpr (Movable<Batch>) {
      if (!moves_) return made;
      const SideStream side(*this, made.get());
      batch = map_tensors(batch, [&](const at::Tensor& tensor) { return copy(tensor); });
      return copies_ahead() ? side.finish() : made;
    } else {
      if (moves_) refuse_unknown_batch();
      return made;
    }
  }

  // Called when the batch is handed out: the current stream waits for it.
  template <class Batch>
  void receive(const Batch& batch, const Arrival* arrival) const {
    if constexpr (Movable<Batch>) {
      if (arrival == nullptr) return;
      wait_for(*arrival);
      visit_tensors(batch, [&](const at::Tensor& tensor) { use_on_current(tensor); });
    }
  }

 private:
  struct Stream;

  // While it lives, device work goes to the side stream, if there is one.
  class SideStream {
   public:
    SideStream(const Transfer& transfer, const Arrival* made);
    ~SideStream();
    SideStream(const SideStream&) = delete;
    SideStream& operator=(const SideStream&) = delete;
    std::shared_ptr<Arrival> finish() const;

   private:
    const Transfer& transfer_;
    std::unique_ptr<Stream> before_;
  };

  at::Tensor pin(const at::Tensor& tensor) const;
  at::Tensor copy(const at::Tensor& tensor) const;
  static bool is_on_accelerator(const at::Tensor& tensor);
  static std::shared_ptr<Arrival> record_current(c10::Device device);
  static void wait_for(const Arrival& arrival);
  static void use_on_current(const at::Tensor& tensor);
  void refuse_unknown_batch() const;

  c10::Device device_;
  bool moves_;
  bool non_blocking_;
  std::unique_ptr<Stream> side_stream_;
};

}  // namespace accelerant::data::detail
