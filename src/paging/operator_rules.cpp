#include "paging/operator_rules.h"

#include <ATen/core/jit_type.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace accelerant::paging {
namespace {

using c10::DispatchKey;

// Only operators of ATen are known not to touch memory although they could: a kernel that a program
// registers for all keys may read pointers.
bool is_of_aten(const c10::OperatorHandle& op) {
  return std::string_view(op.operator_name().name).starts_with("aten::");
}

bool only_makes_views(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() &&
         std::ranges::all_of(schema.returns(), [](const c10::Argument& result) {
           return result.alias_info() != nullptr && !result.alias_info()->isWrite();
         });
}

// empty_like(), new_zeros() and so on: they read the form of a tensor, not its elements.
bool only_reads_form(std::string_view name) {
  return name.ends_with("_like") || name.starts_with("aten::new_");
}

bool is_made_of_operators(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(DispatchKey::CUDA);
}

// Made of operators, but read memory beside them: recurrent layers look at the addresses of their
// weights to find out whether these lie as cuDNN wants them, and operators for quantised weights
// read their elements.
bool reads_memory_itself(std::string_view name) {
  constexpr std::array recurrent{std::string_view("aten::lstm"), std::string_view("aten::gru"),
                                 std::string_view("aten::rnn_tanh"),
                                 std::string_view("aten::rnn_relu")};
  constexpr std::array quantised{std::string_view("fbgemm"), std::string_view("quantized"),
                                 std::string_view("qparams"), std::string_view("saturate"),
                                 std::string_view("_wrapped_")};
  return std::ranges::find(recurrent, name) != recurrent.end() ||
         std::ranges::any_of(quantised, [&](std::string_view part) {
           return name.find(part) != std::string_view::npos;
         });
}

bool is_collective(std::string_view name) {
  return name.starts_with("c10d::") || name.starts_with("_c10d_functional::");
}

// Batch norms update their running statistics, and most of them do not say so.
bool writes(const c10::Argument& argument) {
  return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
         argument.name() == "running_mean" || argument.name() == "running_var";
}

OperatorRule make_rule(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view name = op.operator_name().name;
  const bool writes_any = std::ranges::any_of(schema.arguments(), writes);
  OperatorRule rule{.arguments = static_cast<uint32_t>(schema.arguments().size()),
                    .outlives_call = is_collective(name)};
  if (is_of_aten(op) && !reads_memory_itself(name)) {
    if (is_made_of_operators(op)) return rule;
    if (!writes_any && (only_makes_views(schema) || only_reads_form(name))) return rule;
  }
  for (uint32_t i = 0; i < rule.arguments; ++i) {
    rule.used.push_back({.position = i, .is_written = writes(schema.arguments()[i])});
  }
  return rule;
}

// The schema lives as long as the operator. Its address is a cheaper key than the name.
using Rules = ska::flat_hash_map<const c10::FunctionSchema*, OperatorRule>;

// Static objects may use paged parameters in their destructors, after this one has gone.
thread_local bool has_own_rules = true;
struct OwnRules {
  ~OwnRules() { has_own_rules = false; }
  Rules rules = {};
};

const OperatorRule& rule_in(Rules& rules, const c10::OperatorHandle& op) {
  const auto found = rules.find(&op.schema());
  if (found != rules.end()) return found->second;
  return rules.emplace(&op.schema(), make_rule(op)).first->second;
}

}  // namespace

const OperatorRule& rule_of(const c10::OperatorHandle& op) {
  thread_local OwnRules own;
  if (has_own_rules) return rule_in(own.rules, op);
  thread_local auto* const late = new Rules();  // of a thread that is about to end
  return rule_in(*late, op);
}

}  // namespace accelerant::paging
