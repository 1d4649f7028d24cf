#include "paging/interception.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>
#include <torch/version.h>

#include <memory>
#include <string_view>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"
#include "paging/key_alias.h"
#include "paging/operator_rules.h"
#include "paging/pins.h"

namespace accelerant::paging {
namespace {

constexpr c10::DispatchKeySet keys_below(c10::DispatchKeySet::FULL_AFTER, paging_key);

thread_local uint64_t intercepted = 0;  // operators of this thread, for the probe

void pin_if_paged(const c10::IValue& value, Use use, Pins& pins) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (has_paging_key(tensor)) pins.add(tensor, use);
  } else if (value.isList()) {  // of tensors, of optional tensors
    for (const c10::IValue& element : value.toListRef()) {
      if (!element.isTensor()) {
        if (element.isNone()) continue;
        break;
      }
      const at::Tensor& tensor = element.toTensor();
      if (has_paging_key(tensor)) pins.add(tensor, use);
    }
  }
}

// Stands before every operator with a tensor that has the key.
void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  ++intercepted;
  const OperatorRule& rule = rule_of(op);
  Pins pins;
  if (!rule.used.empty()) {
    const auto first = stack->end() - rule.arguments;
    for (const OperatorRule::Argument& argument : rule.used) {
      pin_if_paged(*(first + argument.position),
                   {.writes = argument.is_written, .outlives_call = rule.outlives_call}, pins);
    }
  }
  op.redispatchBoxed(keys & keys_below, stack);
}

[[noreturn]] void refuse_libtorch(const std::string& got) {
  throw Error(ErrorDetails{
      .problem = "Parameters cannot be paged with this libtorch",
      .expected = c10::str("a dispatch key ", c10::toString(paging_key),
                           " that nothing else uses and that operators heed"),
      .got = c10::str(got, " (libtorch ", TORCH_VERSION, ")"),
      .hint = "use a version of libtorch that this version of Accelerant was tested with"});
}

void probe() {
  const c10::InferenceMode plain(false);
  const at::Tensor tensor = at::empty({1}, at::TensorOptions(at::kFloat).device(at::kCPU));
  const at::Tensor keyed(alias_with_keys(tensor, tensor.key_set().add(paging_key)));
  const uint64_t before = intercepted;
  const at::Tensor result = at::add(keyed, keyed);
  if (intercepted == before) refuse_libtorch("operators that pass it by");
  if (has_paging_key(result)) refuse_libtorch("results of computations that have it, too");
}

// Operators of ATen that use no memory themselves, such as views, do not even pass by.
void let_others_pass(torch::Library& library) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!std::string_view(name.name).starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !rule_of(*op).used.empty()) continue;
    library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFallthrough());
  }
}

bool install() {
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(paging_key)) {
    refuse_libtorch("another user of that key");
  }
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "_", paging_key, __FILE__, __LINE__);
  auto of_aten = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", paging_key,
                                                  __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
  let_others_pass(*of_aten);
  probe();
  // Parameters may outlive static objects.
  accelerant::detail::never_destroy(library.release());
  accelerant::detail::never_destroy(of_aten.release());
  return true;
}

}  // namespace

void start_interception() { [[maybe_unused]] static const bool installed = install(); }

}  // namespace accelerant::paging
