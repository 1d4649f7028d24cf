#include "accelerant/amp/step_result.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "compat/device.h"
#include "kernels/amp_kernels.h"

namespace accelerant {

// A flag on a device, and its transfer to the host.
class StepResult::PendingFlag {
 public:
  // The caller may be on another stream or thread, so remember the stream that writes the flag.
  explicit PendingFlag(at::Tensor flag)
      : flag_(std::move(flag)),
        stream_(c10::impl::VirtualGuardImpl(flag_.device().type()).getStream(flag_.device())) {}

  const at::Tensor& flag() const { return flag_; }

  bool wait() {
    if (!value_) {
      if (!arrived_) start_transfer();
      arrived_->synchronize();
      read();
    }
    return *value_;
  }

  std::optional<bool> poll() {
    if (!value_) {
      if (!arrived_) start_transfer();
      if (!arrived_->query()) return std::nullopt;
      read();
    }
    return value_;
  }

 private:
  void start_transfer() {
    const c10::StreamGuard guard(stream_);
    host_copy_ = at::empty({}, at::TensorOptions().dtype(flag_.dtype()).pinned_memory(true));
    queue_copy();
    arrived_.emplace(stream_.device_type());
    arrived_->record(stream_);
  }

  void queue_copy() {
#if defined(ACCELERANT_WITH_CUDA)
    if (flag_.is_cuda() && flag_.scalar_type() == at::kFloat) {
      compat::hold_for(stream_, host_copy_);
      kernels::cuda::copy_flag(flag_.const_data_ptr<float>(), host_copy_.mutable_data_ptr<float>(),
                               compat::current_cuda_stream(flag_.device()));
      return;
    }
#endif
    host_copy_.copy_(flag_.detach(), /*non_blocking=*/true);
  }

  void read() {
    value_ = host_copy_.item<float>() != 0.0F;  // nan counts as an overflow
    flag_.reset();
    host_copy_.reset();
  }

  at::Tensor flag_;
  c10::Stream stream_;
  at::Tensor host_copy_;  // pinned
  std::optional<c10::Event> arrived_;
  std::optional<bool> value_;
};

StepResult::StepResult(Kind not_due) : kind_(not_due) {}

StepResult StepResult::decided(bool skipped, at::Tensor loss) {
  StepResult result(Kind::submitted);
  result.skipped_ = skipped;
  result.loss_ = std::move(loss);
  return result;
}

StepResult StepResult::undecided(at::Tensor found_inf, at::Tensor loss) {
  if (found_inf.is_cpu()) return decided(found_inf.item<float>() != 0.0F, std::move(loss));
  StepResult result(Kind::submitted);
  result.loss_ = std::move(loss);
  result.pending_ = std::make_shared<PendingFlag>(std::move(found_inf));
  return result;
}

at::Tensor StepResult::device_flag() const { return pending_ ? pending_->flag() : at::Tensor(); }

bool StepResult::skipped() const { return pending_ ? pending_->wait() : skipped_; }

std::optional<bool> StepResult::poll() const { return pending_ ? pending_->poll() : skipped_; }

}  // namespace accelerant
