#include "accelerant/nn/activation_checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>
#include <optional>
#include <string>

#include "accelerant/amp/autocast.h"
#include "accelerant/core/error.h"
#include "core/texts.h"
#include "nn/generator_states.h"
#include "nn/offloaded_inputs.h"
#include "nn/saved_tensor_hooks.h"

namespace accelerant::nn {
namespace detail {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

thread_local int recomputing = 0;

// Ends a second forward that has computed everything needed. Not a std::exception, so functions
// that catch those let it pass.
struct AllRecomputed {};

// What the second forward must reproduce.
struct Description {
  explicit Description(const at::Tensor& tensor)
      : sizes(tensor.sizes().vec()),
        dtype(tensor.scalar_type()),
        device(tensor.device()),
        version(parameter_version(tensor)) {}

  std::string text() const {
    return c10::str(c10::toString(dtype), " ", c10::IntArrayRef(sizes), " on ", device);
  }
  bool same_form(const Description& other) const {
    return sizes == other.sizes && dtype == other.dtype && device == other.device;
  }

  std::vector<int64_t> sizes;
  c10::ScalarType dtype;
  c10::Device device;
  std::optional<int64_t> version;  // of a parameter: counts its changes

 private:
  // Operators save a weight or a view of it.
  static std::optional<int64_t> parameter_version(const at::Tensor& tensor) {
    const at::TensorBase& itself = tensor;
    const at::TensorBase& owner = tensor.is_view() ? tensor._base() : itself;
    if (!owner.is_leaf() || !owner.requires_grad()) return std::nullopt;
    return owner._version();
  }
};

// A tensor that autograd saved in a checkpoint. Nodes of the graph own hooks, hooks own slots, and
// slots own the frame: once backward has finished with all of them, the inputs of the checkpoint
// are freed.
struct Slot {
  std::shared_ptr<detail::CheckpointFrame> frame;
  at::Tensor value = {};  // from the second forward until its use
  int64_t version = 0;    // version of `value` when it was saved
};

[[noreturn]] void refuse_difference(const std::string& expected, const std::string& got) {
  throw Error(ErrorDetails{
      .problem = "The second forward of a checkpoint differs from the first",
      .expected = expected,
      .got = got,
      .hint =
          "the function must do the same for the same inputs; draw random decisions from torch's "
          "generators"});
}

// One call of checkpoint(), kept alive by what autograd saved in it.
class CheckpointFrame final : public SavedTensorHookSource,
                              public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                  CheckpointScope::Function run_again)
      : options_(options), autocast_(AutocastState::capture()), run_again_(std::move(run_again)) {
    // Saved by autograd: an outer checkpoint drops them too, and in-place changes are detected.
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
    if (options.offload_inputs.value_or(ActivationOffloadScope::is_on())) offload(inputs);
    if (options.preserve_rng_state) generators_ = GeneratorStates::capture();
  }

  std::unique_ptr<SavedVariableHooks> make_hooks() override;

  std::shared_ptr<Slot> add_slot(const at::Tensor& tensor) {
    auto slot = std::make_shared<Slot>(Slot{.frame = shared_from_this()});
    slots_.push_back({slot, Description(tensor)});
    return slot;
  }

  // The tensor that was saved in the slot. Each is handed out once, as backward needs it once; if
  // it is requested again, the forward runs again.
  at::Tensor take(Slot& slot) {
    const std::lock_guard lock(mutex_);  // backward uses one thread per device
    if (!slot.value.defined()) recompute();
    if (slot.value._version() != slot.version) {
      throw Error(ErrorDetails{
          .problem = "A tensor that backward needs was changed in place inside a checkpoint",
          .expected = c10::str(Description(slot.value).text(), " as it was saved"),
          .got = "a tensor that an in-place operation has changed since",
          .hint = "use the out-of-place operation"});
    }
    return std::exchange(slot.value, at::Tensor());
  }

  // The second forward saves its tensor number `index`.
  void fill(std::size_t index, const at::Tensor& tensor, const at::Tensor& value) {
    if (index >= slots_.size()) {
      if (!options_.determinism_check) return;
      refuse_difference(counted(slots_.size(), "tensor") + " saved for backward", "more");
    }
    const auto& [slot, description] = slots_[index];
    if (options_.determinism_check) check(index, description, Description(tensor));
    if (const auto alive = slot.lock()) {
      alive->value = value;
      alive->version = value._version();
    }
    if (options_.early_stop && index + 1 == slots_.size()) throw AllRecomputed();
  }

 private:
  struct Saved {
    std::weak_ptr<Slot> slot;  // expired if backward will not need it
    Description description;
  };

  void recompute();
  void offload(const std::vector<at::Tensor>& inputs);

  void check(std::size_t index, const Description& first, const Description& second) const {
    const std::string which =
        c10::str("as tensor ", index + 1, " of ", slots_.size(), " saved for backward");
    if (!first.same_form(second)) {
      refuse_difference(c10::str(first.text(), ", ", which), second.text());
    }
    if (first.version && second.version && *first.version != *second.version) {
      throw Error(ErrorDetails{
          .problem = "A parameter was changed between the forward of a checkpoint and its backward",
          .expected = c10::str(first.text(), ", ", which, ", unchanged"),
          .got =
              c10::str(counted(static_cast<uint64_t>(*second.version - *first.version), "change"),
                       " since then"),
          .hint = "run backward before the optimizer steps"});
    }
  }

  CheckpointOptions options_;
  AutocastState autocast_;
  std::optional<GeneratorStates> generators_;
  std::vector<SavedVariable> inputs_;
  std::shared_ptr<OffloadedInputs> offloaded_;  // null if they are where they were
  CheckpointScope::Function run_again_;
  std::vector<Saved> slots_;
  std::recursive_mutex mutex_;
};

namespace {

// What a node of the graph keeps instead of a tensor.
class DroppedTensor final : public SavedVariableHooks {
 public:
  explicit DroppedTensor(CheckpointFrame& frame) : frame_(frame) {}
  void call_pack_hook(const at::Tensor& tensor) override { slot_ = frame_.add_slot(tensor); }
  at::Tensor call_unpack_hook() override { return slot_->frame->take(*slot_); }

 private:
  CheckpointFrame& frame_;  // kept alive by the slot
  std::shared_ptr<Slot> slot_;
};

// Collects what the second forward saves. Its graph is unused, unless the function itself runs a
// backward.
class SecondForward final : public SavedTensorHookSource {
 public:
  explicit SecondForward(CheckpointFrame& frame)
      : frame_(frame), outer_(exchange_hook_source(this)) {
    ++recomputing;
  }
  ~SecondForward() {
    --recomputing;
    exchange_hook_source(outer_);
  }
  SecondForward(const SecondForward&) = delete;
  SecondForward& operator=(const SecondForward&) = delete;

  std::unique_ptr<SavedVariableHooks> make_hooks() override {
    return std::make_unique<Hooks>(*this);
  }

  std::size_t saved() const { return saved_; }

 private:
  class Hooks final : public SavedVariableHooks {
   public:
    explicit Hooks(SecondForward& forward) : forward_(forward) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      value_ = tensor.detach();
      forward_.frame_.fill(forward_.saved_++, tensor, value_);
    }
    at::Tensor call_unpack_hook() override { return value_; }

   private:
    SecondForward& forward_;
    at::Tensor value_;
  };

  CheckpointFrame& frame_;
  SavedTensorHookSource* outer_;
  std::size_t saved_ = 0;
};

// Draws the numbers of the first forward, then restores the generators.
class SameRandomNumbers {
 public:
  explicit SameRandomNumbers(const std::optional<GeneratorStates>& states) {
    if (!states) return;
    now_ = GeneratorStates::capture();
    states->restore();
  }
  ~SameRandomNumbers() {
    if (now_) now_->restore();
  }
  SameRandomNumbers(const SameRandomNumbers&) = delete;
  SameRandomNumbers& operator=(const SameRandomNumbers&) = delete;

 private:
  std::optional<GeneratorStates> now_;
};

}  // namespace

std::unique_ptr<SavedVariableHooks> CheckpointFrame::make_hooks() {
  return std::make_unique<DroppedTensor>(*this);
}

// The inputs that an outer checkpoint drops are not here to be offloaded.
void CheckpointFrame::offload(const std::vector<at::Tensor>& inputs) {
  if (has_hook_source()) return;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!OffloadedInputs::takes(inputs[i])) continue;
    if (!offloaded_) offloaded_ = OffloadedInputs::next();
    offloaded_->keep(inputs_[i]);
  }
}

void CheckpointFrame::recompute() {
  if (offloaded_) offloaded_->bring_back();
  std::vector<at::Tensor> inputs;
  for (const SavedVariable& input : inputs_) inputs.push_back(input.unpack());

  const SameRandomNumbers random(generators_);
  const AutocastGuard autocast(autocast_);
  const at::AutoGradMode with_gradients(true);
  const SecondForward second(*this);
  try {
    run_again_(inputs);
  } catch (const AllRecomputed&) {
    return;
  }
  if (second.saved() < slots_.size()) {
    refuse_difference(counted(slots_.size(), "tensor") + " saved for backward",
                      c10::str(second.saved()));
  }
}

bool records_gradients() { return at::GradMode::is_enabled(); }

CheckpointScope::CheckpointScope(const CheckpointOptions& options,
                                 const std::vector<at::Tensor>& inputs, Function run_again)
    : frame_(std::make_shared<CheckpointFrame>(options, inputs, std::move(run_again))),
      outer_(exchange_hook_source(frame_.get())) {}

CheckpointScope::~CheckpointScope() { exchange_hook_source(outer_); }

void check_segments(int64_t segments, std::size_t modules) {
  if (segments >= 1 && static_cast<std::size_t>(segments) <= modules) return;
  throw Error(ErrorDetails{.problem = "checkpoint_sequential() got an invalid number of segments",
                           .expected = c10::str("1 to ", modules, ", the number of modules"),
                           .got = c10::str(segments)});
}

}  // namespace detail

bool is_recomputing() { return detail::recomputing > 0; }

}  // namespace accelerant::nn
