// Scopes in which the pager moves memory.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <mutex>

namespace accelerant::paging {

// Releases a lock and takes it again.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

// Operators of the pager's own run as outside of any mode, whatever the operator does that it
// stands before: blocks must not become inference tensors, which could not be written to later.
struct OrdinaryMode {
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad{};
};

}  // namespace accelerant::paging
