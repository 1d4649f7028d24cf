#include "nn/offloaded_inputs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "accelerant/core/error.h"
#include "compat/device.h"

namespace accelerant::nn::detail {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

// Smaller ones take longer to send than they save.
constexpr std::size_t kWorthSending = std::size_t{1} << 16;  // bytes

thread_local bool scope_is_on = false;
thread_local std::weak_ptr<OffloadedInputs> latest;

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// One stream for each direction and device, of the whole process: links have both directions.
enum class Direction { out, back };

c10::Stream copy_stream(c10::Device device, Direction direction) {
  struct Known {
    c10::Stream stream;
    Direction direction;
  };
  // Never destroyed: graphs may be static objects.
  static auto& mutex = *new std::mutex();
  static auto& all = *new std::vector<Known>();
  const std::scoped_lock lock(mutex);
  for (const Known& known : all) {
    if (known.stream.device() == device && known.direction == direction) return known.stream;
  }
  all.push_back(
      {c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device), direction});
  return all.back().stream;
}

}  // namespace

bool& offloads_on_every_device() {
  static bool on = false;
  return on;
}

ActivationOffloadScope::ActivationOffloadScope(bool on) : before_(std::exchange(scope_is_on, on)) {}
ActivationOffloadScope::~ActivationOffloadScope() { scope_is_on = before_; }
bool ActivationOffloadScope::is_on() { return scope_is_on; }

class OffloadedInputs::Input {
 public:
  explicit Input(const at::Tensor& tensor)
      : device_(tensor.device()),
        counter_(tensor.unsafeGetTensorImpl()->version_counter()),
        version_(counter_.current_version()) {
    const at::NoGradGuard no_grad;
    host_ = at::empty_strided(
        tensor.sizes(), tensor.strides(),
        at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(!device_.is_cpu()));
    if (device_.is_cpu()) {
      host_.copy_(tensor);
      return;
    }
    const c10::Stream stream = copy_stream(device_, Direction::out);
    c10::Event computed(device_.type());
    computed.record(current_stream(device_));
    computed.block(stream);
    const c10::StreamGuard guard(stream);
    host_.copy_(tensor, /*non_blocking=*/true);
    tensor.record_stream(stream);
    sent_.emplace(device_.type());
    sent_->record(stream);
  }

  // Memory that is still written to must not be used by others. If that cannot be arranged, the
  // device is gone.
  ~Input() {
    if (!arriving_.defined() || device_.is_cpu()) return;
    try {
      arriving_.record_stream(copy_stream(device_, Direction::back));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    }
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  void begin_fetching() {
    if (arriving_.defined()) return;
    const at::NoGradGuard no_grad;
    const at::Tensor arriving =
        at::empty_strided(host_.sizes(), host_.strides(),
                          at::TensorOptions().dtype(host_.scalar_type()).device(device_));
    if (device_.is_cpu()) {
      arriving.copy_(host_);
      arriving_ = arriving;
      return;
    }
    // The memory belongs to the current stream, which may have used it until now.
    const c10::Stream stream = copy_stream(device_, Direction::back);
    allocated_on_ = current_stream(device_);
    c10::Event allocated(device_.type());
    allocated.record(*allocated_on_);
    allocated.block(stream);
    sent_->block(stream);
    const c10::StreamGuard guard(stream);
    arriving.copy_(host_, /*non_blocking=*/true);
    arrived_.emplace(device_.type());
    arrived_->record(stream);
    arriving_ = arriving;
  }

  at::Tensor take() {
    if (counter_.current_version() != version_) {
      throw Error(ErrorDetails{
          .problem = "An input of a checkpoint was changed in place after the checkpoint",
          .expected = c10::str("version ", version_, ", which is in host memory for backward"),
          .got = c10::str("version ", counter_.current_version()),
          .hint = "use the out-of-place operation"});
    }
    begin_fetching();
    at::Tensor tensor = std::exchange(arriving_, at::Tensor());
    if (!device_.is_cpu()) {
      const c10::Stream stream = current_stream(device_);
      arrived_->block(stream);
      if (stream != *allocated_on_) tensor.record_stream(stream);
    }
    return tensor;
  }

 private:
  c10::Device device_;
  c10::VariableVersion counter_;  // of the input
  uint32_t version_;
  at::Tensor host_;
  std::optional<c10::Event> sent_;
  at::Tensor arriving_;
  std::optional<c10::Stream> allocated_on_;
  std::optional<c10::Event> arrived_;
};

class OffloadedInputs::Hooks final : public SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<OffloadedInputs> owner) : owner_(std::move(owner)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    input_ = std::make_shared<Input>(tensor);
    owner_->inputs_.push_back(input_);
  }
  at::Tensor call_unpack_hook() override {
    const std::scoped_lock lock(owner_->mutex_);
    return input_->take();
  }

 private:
  std::shared_ptr<OffloadedInputs> owner_;
  std::shared_ptr<Input> input_;
};

std::shared_ptr<OffloadedInputs> OffloadedInputs::next() {
  auto made = std::make_shared<OffloadedInputs>();
  made->before_ = std::exchange(latest, made);
  return made;
}

bool OffloadedInputs::takes(const at::Tensor& input) {
  if (!input.defined() || input.layout() != at::kStrided || input.grad_fn() == nullptr ||
      !input.is_non_overlapping_and_dense() || input.is_neg() || input.is_conj()) {
    return false;
  }
  // The replays of a graph would not run the host's part of it.
  if (compat::current_capture(input.device()) != 0) return false;
  if (offloads_on_every_device()) return true;
  return !input.is_cpu() && input.nbytes() >= kWorthSending;
}

void OffloadedInputs::keep(SavedVariable& saved) {
  saved.register_hooks(std::make_unique<Hooks>(shared_from_this()));
}

void OffloadedInputs::begin_fetching() {
  const std::scoped_lock lock(mutex_);
  for (const auto& input : inputs_) input->begin_fetching();
}

void OffloadedInputs::bring_back() {
  begin_fetching();
  const auto before = before_.lock();
  if (!before) return;
  try {
    before->begin_fetching();
  } catch (const c10::OutOfMemoryError&) {  // NOLINT(bugprone-empty-catch)
    // They come when they are needed, and what is on the device now may be gone by then.
  }
}

}  // namespace accelerant::nn::detail
