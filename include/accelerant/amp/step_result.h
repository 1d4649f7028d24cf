// What became of an optimizer step under loss scaling.
//
//   auto result = scaler.step(optimizer);
//   if (result.skipped()) ...          // the truth; may wait for the device
//   if (auto known = result.poll()) ...  // never waits; empty while the device has not answered
//
// A result that nobody asks costs nothing. It is a cheap handle: copies share one answer. It stays
// valid after the scaler and the optimizer are gone. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace accelerant {

class StepResult {
 public:
  enum class Kind {
    submitted,      // the optimizer was asked to step
    accumulating,   // gradients are still being gathered: no step was due
    nothing_to_do,  // there were no gradients to step with
  };

  // A step that was not due (a scaler's steps always are; those of a loop that accumulates need not
  // be); skipped() is false.
  explicit StepResult(Kind not_due);

  // A step whose outcome the host knows. `loss` is what the optimizer returned, if anything.
  static StepResult decided(bool skipped, at::Tensor loss = {});

  // A step whose outcome lies in `found_inf`, a one-element tensor that nobody writes any more:
  // non-zero means skipped.
  static StepResult undecided(at::Tensor found_inf, at::Tensor loss = {});

  Kind kind() const { return kind_; }

  // True if overflow kept the optimizer from changing the parameters. Waits for the device where
  // the decision was made there and has not been read yet.
  bool skipped() const;

  // As skipped(), but empty instead of waiting. The first call starts the transfer.
  std::optional<bool> poll() const;

  // The flag that lies on the device as long as nobody has asked; undefined where the host knows
  // the outcome.
  at::Tensor device_flag() const;

  // What the optimizer's own step returned; undefined when it returned nothing or did not run.
  const at::Tensor& loss() const { return loss_; }

 private:
  class PendingFlag;

  Kind kind_ = Kind::submitted;
  bool skipped_ = false;
  at::Tensor loss_;
  std::shared_ptr<PendingFlag> pending_;  // empty when the outcome is in skipped_
};

}  // namespace accelerant
