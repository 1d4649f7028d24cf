#include "paging/init_mode.h"

#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>
#include <torch/version.h>

#include <exception>
#include <string>
#include <unordered_set>
#include <vector>

#include "accelerant/core/error.h"
#include "paging/lazy_memory.h"

namespace accelerant::paging {
namespace {

// A key that libtorch registers nothing for, and that no tensor has: only threads include it. It
// comes before all keys that do something, so operations are seen as the program calls them.
constexpr c10::DispatchKey kInitKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Smaller memory is not worth a mapping of its own.
constexpr std::size_t kLazyBytes = 1 << 20;

// How much memory parameters may keep until they are moved although nothing has used them.
constexpr std::size_t kUnsettledBytes = 64 << 20;

thread_local InitMode* innermost = nullptr;

void see_operation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // What an operation calls to do its work is its own affair.
  const c10::impl::ExcludeDispatchKeyGuard unseen(kInitKey);
  if (innermost == nullptr) return op.callBoxed(stack);  // in a thread of autograd
  innermost->run(op, stack);
}

// Registers the fallback once. Never undone: other threads may be in it when the process ends.
void require_seen_operations() {
  static const std::string fault = [] {
    try {
      static auto* const library = new torch::Library(torch::Library::IMPL, "_", kInitKey, __FILE__,
                                                      static_cast<uint32_t>(__LINE__));
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&see_operation>());
      return std::string();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  }();
  if (fault.empty()) return;
  throw Error(ErrorDetails{
      .problem = "init_empty_weights and init_on_device cannot see what constructors create",
      .expected = "a libtorch in which nothing else handles the dispatch key " +
                  std::string(c10::toString(kInitKey)),
      .got = "torch " TORCH_VERSION ": " + fault,
      .hint = "build the model without the scope, or remove what else registers this key"});
}

template <class F>
void visit_tensors(const c10::IValue& value, F&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) visit_tensors(element, visit);
  }
}

bool is_parameter(const at::Tensor& tensor) { return tensor.requires_grad() && tensor.is_leaf(); }

at::Tensor shape_on_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(at::kMeta).requires_grad(false));
}

}  // namespace

// An operation and its arguments on the stack.
class InitMode::Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op),
        stack_(stack),
        count_(op.schema().arguments().size()),
        first_(stack.size() - count_) {
    for (std::size_t i = 0; i < count_; ++i) {
      visit_tensors(argument(i), [&](const at::Tensor& tensor) {
        has_tensors_ = true;
        tensors_.insert(tensor.unsafeGetTensorImpl());
        if (tensor.has_storage()) storages_.insert(tensor.storage().unsafeGetStorageImpl());
      });
    }
  }

  const c10::OperatorHandle& op() const { return op_; }
  torch::jit::Stack& stack() { return stack_; }
  std::size_t count() const { return count_; }
  c10::IValue& argument(std::size_t i) { return stack_[first_ + i]; }
  bool has_tensors() const { return has_tensors_; }

  bool is_argument(const at::Tensor& tensor) const {
    return tensors_.contains(tensor.unsafeGetTensorImpl());
  }

  bool is_view_of_argument(const at::Tensor& tensor) const {
    return storages_.contains(tensor.storage().unsafeGetStorageImpl());
  }

  bool writes(std::size_t i) const {
    const c10::AliasInfo* const alias = op_.schema().arguments()[i].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  // The argument of that name, or null.
  c10::IValue* find(const char* name) {
    const auto index = op_.schema().argumentIndexWithName(name);
    return index ? &argument(static_cast<std::size_t>(*index)) : nullptr;
  }

  // Whether it makes tensors from nothing, like torch::empty().
  bool is_factory() { return !has_tensors_ && find("device") != nullptr; }

  void set_device(c10::Device device) {
    *find("device") = device;
    // Pinned memory is memory of the host.
    if (c10::IValue* const pin = device.is_cpu() ? nullptr : find("pin_memory")) {
      *pin = c10::IValue();
    }
  }

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::size_t count_;
  std::size_t first_;
  bool has_tensors_ = false;
  std::unordered_set<const c10::TensorImpl*> tensors_ = {};
  std::unordered_set<const c10::StorageImpl*> storages_ = {};
};

InitMode::InitMode(c10::Device device, bool include_buffers)
    : device_(device), include_buffers_(include_buffers), outer_(innermost), move_(device) {
  require_seen_operations();
  included_.emplace(kInitKey);
  innermost = this;
}

InitMode::~InitMode() { innermost = outer_; }

bool InitMode::is_new(const at::Tensor& tensor) const {
  return created_.contains(tensor.unsafeGetTensorImpl()) ||
         (tensor.has_storage() && storages_.contains(tensor.storage().unsafeGetStorageImpl()));
}

bool InitMode::is_to_move(const at::Tensor& tensor) const {
  return !is_on(tensor, device_) && StorageMove::can_move(tensor);
}

void InitMode::remember(const at::Tensor& tensor, bool has_new_storage) {
  const bool is_known =
      !created_.try_emplace(tensor.unsafeGetTensorImpl(), WeakTensor(tensor.getIntrusivePtr()))
           .second;
  if (is_known || !has_new_storage || !is_to_move(tensor)) return;
  const c10::Storage& storage = tensor.storage();
  storages_.try_emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
  unsettled_bytes_ += storage.nbytes();
}

// Memory that nothing has written yet need not exist: parameters are created empty and then moved.
bool InitMode::run_lazily(Call& call) {
  const std::string& name = call.op().schema().name();
  if (name != "aten::empty" && name != "aten::zeros") return false;
  if (!call.is_factory()) return false;
  const c10::IValue& device = *call.find("device");
  if (!device.isNone() && !device.toDevice().is_cpu()) return false;
  const c10::IValue* const pin = call.find("pin_memory");
  if (pin != nullptr && !pin->isNone() && pin->toBool()) return false;

  const auto arguments = static_cast<std::ptrdiff_t>(call.count());
  torch::jit::Stack copies(call.stack().end() - arguments, call.stack().end());
  Call on_meta(call.op(), copies);
  on_meta.set_device(at::kMeta);
  call.op().callBoxed(&copies);
  const at::Tensor shape = copies.front().toTensor();
  if (!StorageMove::can_move(shape) || shape.storage().nbytes() < kLazyBytes) return false;
  torch::jit::drop(call.stack(), call.count());
  call.stack().emplace_back(lazy_zeros(shape));
  return true;
}

// Lets a random operation run on the meta device, where it does nothing. One on tensors from
// outside the scope runs as it is.
void InitMode::avoid_random_numbers(Call& call) {
  std::vector<std::size_t> real;
  for (std::size_t i = 0; i < call.count(); ++i) {
    if (!call.argument(i).isTensor() || !call.argument(i).toTensor().defined()) continue;
    const at::Tensor& tensor = call.argument(i).toTensor();
    if (tensor.is_meta()) continue;
    if (!is_new(tensor) || !StorageMove::can_move(tensor)) return;
    real.push_back(i);
  }
  for (const std::size_t i : real) {
    if (call.writes(i)) {
      move_.move(call.argument(i).toTensor());
    } else {
      call.argument(i) = shape_on_meta(call.argument(i).toTensor());
    }
  }
  if (call.find("device") != nullptr) call.set_device(at::kMeta);
}

// randperm() has no kernel for the meta device.
bool InitMode::run_permutation(Call& call) {
  if (!device_.is_meta() || call.op().schema().name() != "aten::randperm") return false;
  const c10::IValue* const dtype = call.find("dtype");
  if (dtype == nullptr) return false;
  const at::ScalarType type = dtype->isNone() ? at::kLong : dtype->toScalarType();
  const at::Tensor result =
      at::empty({call.argument(0).toInt()}, at::TensorOptions(at::kMeta).dtype(type));
  torch::jit::drop(call.stack(), call.count());
  call.stack().emplace_back(result);
  return true;
}

void InitMode::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, *stack);
  for (std::size_t i = 0; i < call.count(); ++i) {
    visit_tensors(call.argument(i), [&](const at::Tensor& tensor) {
      if (is_parameter(tensor)) settle(tensor);
    });
  }
  const bool is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  if (device_.is_meta() && is_random) {
    avoid_random_numbers(call);
  } else if (include_buffers_ && call.is_factory() && call.find("device")->isNone()) {
    call.set_device(device_);
  }
  // Dispatched anew, not onwards: the arguments may be on another device now.
  if (!run_lazily(call) && !run_permutation(call)) op.callBoxed(stack);
  for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size())) {
    visit_tensors(result, [&](const at::Tensor& tensor) {
      if (call.is_argument(tensor)) return;
      remember(tensor, tensor.has_storage() && !call.is_view_of_argument(tensor));
    });
  }
  if (unsettled_bytes_ > kUnsettledBytes) settle();
}

void InitMode::settle(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kInitKey);
  if (is_new(tensor) && is_to_move(tensor)) move_.move(tensor);
}

void InitMode::settle() {
  unsettled_bytes_ = 0;
  std::erase_if(created_, [](const auto& entry) { return entry.second.expired(); });
  std::erase_if(storages_, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [address, weak] : created_) {
    const at::Tensor tensor(weak.lock());
    if (tensor.defined() && is_parameter(tensor)) settle(tensor);
  }
}

}  // namespace accelerant::paging
