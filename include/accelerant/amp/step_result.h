// The outcome of an optimizer step under loss scaling.
//
//   auto result = scaler.step(optimizer);
//   if (result.skipped()) ...            // may wait for the device
//   if (auto known = result.poll()) ...  // never waits; empty until the device has answered
//
// A result that is never queried costs nothing. It is a cheap handle: copies share one answer. It
// stays valid after the scaler and the optimizer are gone. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace accelerant {

class StepResult {
 public:
  enum class Kind {
    submitted,      // the optimizer was asked to step
    accumulating,   // gradients are still being accumulated: no step was due
    nothing_to_do,  // there were no gradients
  };

  // A step that was not due, for example in a loop that accumulates gradients; skipped() is false.
  explicit StepResult(Kind not_due);

  // A step whose outcome the host knows. `loss` is what the optimizer returned, if anything.
  static StepResult decided(bool skipped, at::Tensor loss = {});

  // A step whose outcome is in `found_inf`, a one-element tensor that is no longer written:
  // non-zero means skipped.
  static StepResult undecided(at::Tensor found_inf, at::Tensor loss = {});

  Kind kind() const { return kind_; }

  // True if gradients that were inf or nan kept the optimizer from changing the parameters. Waits
  // for the device if the decision was made there and has not been read yet.
  bool skipped() const;

  // Like skipped(), but returns empty instead of waiting. The first call starts the transfer.
  std::optional<bool> poll() const;

  // The flag on the device, until the outcome has been queried; undefined if the host knows the
  // outcome.
  at::Tensor device_flag() const;

  // What the optimizer's own step returned; undefined if it returned nothing or did not run.
  const at::Tensor& loss() const { return loss_; }

 private:
  class PendingFlag;

  Kind kind_ = Kind::submitted;
  bool skipped_ = false;
  at::Tensor loss_;
  std::shared_ptr<PendingFlag> pending_;  // empty when the outcome is in skipped_
};

}  // namespace accelerant
