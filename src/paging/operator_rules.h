// What an operator does with its arguments, as far as the pager is concerned.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

namespace accelerant::paging {

struct OperatorRule {
  struct Argument {
    uint32_t position = 0;  // from the first argument
    bool is_written = false;
  };

  uint32_t arguments = 0;  // of the operator, all of them

  // The arguments whose memory it uses. Empty if it uses none: it only makes views, or it is made
  // of other operators, which pass through the pager themselves.
  std::vector<Argument> used = {};

  // Collectives use the memory until their Work is done.
  bool outlives_call = false;
};

// Determined once per operator and thread. The reference is valid until the thread's next call.
const OperatorRule& rule_of(const c10::OperatorHandle& op);

}  // namespace accelerant::paging
