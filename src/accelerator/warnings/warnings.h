// Says each kind of mistake once. The kinds are the switches of WarningOptions, where each is
// explained.
#pragma once

#include <string>

#include "accelerant/accelerator/options.h"

namespace accelerant::detail {

class Warnings {
 public:
  using Kind = bool WarningOptions::*;

  explicit Warnings(const WarningOptions& options) : options_(options) {}

  // Whether the kind is switched on and has not been said yet.
  bool is_open(Kind kind) const;

  // Whether any kind is open.
  bool are_open() const { return options_ != WarningOptions::none(); }

  // Logs the text, which has no full stop, and how to switch it off, if the kind is open: in the
  // main process, or in this one if others may not see the same. `details` go to the end.
  void say(Kind kind, const std::string& what, const std::string& details = {});

  // What looked like a mistake is none: the kind is not looked for any more.
  void close(Kind kind) { options_.*kind = false; }

 private:
  WarningOptions options_;
};

}  // namespace accelerant::detail
