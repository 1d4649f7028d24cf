// Code outside of a model's forward in the Accelerator's precision.
#pragma once

#include <optional>

#include "accelerant/amp/autocast.h"

namespace accelerant {

class Accelerator;

// The scope of Accelerator::autocast().
class [[nodiscard]] AutocastScope {
 public:
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  friend class Accelerator;

  explicit AutocastScope(const std::optional<AutocastOptions>& options) {
    if (options) guard_.emplace(*options);
  }

  std::optional<AutocastGuard> guard_;  // none without mixed precision
};

}  // namespace accelerant
