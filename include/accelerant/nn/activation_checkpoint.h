// Activation checkpointing: a part of a model keeps only its inputs for backward, and repeats its
// forward when backward needs the rest. It trades the time of that forward for the memory of
// everything in between.
//
//   torch::Tensor forward(torch::Tensor x) {
//     for (auto& block : blocks_) x = accelerant::nn::checkpoint(block, x);
//     return accelerant::nn::checkpoint([this](torch::Tensor h) { return head(h); }, x);
//   }
//
// The meaning is that of torch.utils.checkpoint.checkpoint(use_reentrant=False) in Python. It is
// unrelated to the checkpoints on disk that save_state() writes.
//
// - The function may be a module. Inputs and results may be nested (accelerant/tensor/nested.h);
//   numbers and strings are passed on.
// - Parameters that the function uses get their gradients even if no input needs one. All of
//   autograd works: gradients of a part, retain_graph, gradients of gradients, nested checkpoints,
//   and data-parallel models, whose gradients are exchanged as usual.
// - The second forward sees the random numbers and the autocast state of the first, so dropout
//   drops the same elements.
// - Without gradients (at::NoGradGuard) the function is simply called.
//
// The function is copied and called again in backward, by the thread that runs backward: anything
// it captures by reference must live until then. It must do the same for the same inputs, and its
// side effects happen twice. For example, a torch::nn::BatchNorm counts the batch twice in its
// running statistics, as in Python; call is_recomputing() where that matters. Put checkpoints
// inside a model, not around one that prepare() returned.
//
// It needs libtorch's own autograd engine. Inside a Python process, which uses another engine, it
// throws Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/tensor/detail/refill.h"
#include "accelerant/tensor/nested.h"

namespace accelerant::nn {

struct CheckpointOptions {
  // The second forward draws the same random numbers as the first, on the CPU and on the GPUs that
  // this process uses. Turn it off for functions that draw none, to avoid copying the states of the
  // generators. Default: true.
  bool preserve_rng_state = true;

  // Compare shapes, types and devices of what the second forward computes with those of the first,
  // and check that parameters have not changed in between; throws Error if something differs.
  // Default: true.
  bool determinism_check = true;

  // End the second forward, in the middle of the function, as soon as it has computed everything
  // that backward needs. Turn it off for a function that must reach its end both times. Default:
  // true.
  bool early_stop = true;

  // Keep the inputs in pinned host memory between forward and backward, copied beside the
  // computation. They come back while backward works on the checkpoint that was called after this
  // one. Only for inputs on a GPU of at least 64 KiB that are themselves results of the forward:
  // not for its first input or for masks. Checkpoints inside a checkpoint have nothing to keep.
  // Each checkpoint has a copy of its own: an input that many share, such as the output of an
  // encoder that every block of a decoder reads, is copied once for each, so use false there. Has
  // no effect while a CUDA graph is captured, as by Accelerator::capture(): the inputs stay.
  // Default: AcceleratorOptions::offload.activations in the forward of a prepared model, else
  // false.
  std::optional<bool> offload_inputs = std::nullopt;
};

// Whether the calling thread is in the second forward of a checkpoint.
bool is_recomputing();

class SavedTensorHookSource;

namespace detail {

class CheckpointFrame;

bool records_gradients();

// While it lives, tensors that autograd saves in this thread are not kept. `run_again`, which gets
// `inputs` in order, recomputes them.
class [[nodiscard]] CheckpointScope {
 public:
  using Function = std::function<void(const std::vector<at::Tensor>&)>;

  CheckpointScope(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                  Function run_again);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

 private:
  std::shared_ptr<CheckpointFrame> frame_;
  SavedTensorHookSource* outer_;
};

// Throws Error unless `segments` is between 1 and `modules`.
void check_segments(int64_t segments, std::size_t modules);

// Calls modules and pointers to them by their forward, everything else as a function.
template <class F, class... Arguments>
decltype(auto) call(F& function, const Arguments&... arguments) {
  if constexpr (requires { function->forward(arguments...); }) {
    return function->forward(arguments...);
  } else if constexpr (requires { function.forward(arguments...); }) {
    return function.forward(arguments...);
  } else {
    return std::invoke(function, arguments...);
  }
}

// The parts of a container of modules, or of the container inside a module holder.
template <class Modules>
auto parts_of(Modules& modules) {
  const auto collect = [](auto& container) {
    using Part = std::remove_cvref_t<decltype(*container.begin())>;
    return std::vector<Part>(container.begin(), container.end());
  };
  if constexpr (requires { modules->begin(); }) {
    return collect(*modules);
  } else {
    return collect(modules);
  }
}

}  // namespace detail

// Calls function(inputs...) and returns its result, without keeping intermediate results for
// backward.
template <class F, class... Inputs>
auto checkpoint(const CheckpointOptions& options, F&& function, const Inputs&... inputs) {
  static_assert((UnderstoodNesting<std::decay_t<Inputs>> && ...),
                "an input of checkpoint() may hold tensors that cannot be seen: name the fields of "
                "the struct "
                "(accelerant/tensor/nested.h), or let the function capture it");
  if (!detail::records_gradients()) return detail::call(function, inputs...);

  const std::tuple<std::decay_t<Inputs>...> given(inputs...);
  // The tensors are passed where outer checkpoints see them; everything else stays here.
  const detail::CheckpointScope scope(
      options, accelerant::detail::tensors_in(given),
      [kept = std::decay_t<F>(function),
       rest = accelerant::detail::emptied(given)](const std::vector<at::Tensor>& tensors) mutable {
        std::apply([&](const auto&... argument) { detail::call(kept, argument...); },
                   accelerant::detail::refilled(rest, tensors));
      });
  return detail::call(function, inputs...);
}

template <class F, class... Inputs>
requires(!std::is_same_v<std::remove_cvref_t<F>, CheckpointOptions>) auto checkpoint(
    F&& function, const Inputs&... inputs) {
  return checkpoint(CheckpointOptions{}, std::forward<F>(function), inputs...);
}

// Runs modules one after another, in `segments` groups of about equal size. Each group is a
// checkpoint, except the last one, whose backward comes at once. `modules` is a
// torch::nn::Sequential, or a container of modules or functions that take and return a Value
// (usually a tensor). Throws Error unless `segments` is between 1 and the number of modules.
template <class Modules, class Value>
Value checkpoint_sequential(Modules& modules, int64_t segments, const Value& input,
                            const CheckpointOptions& options = {}) {
  const auto parts = detail::parts_of(modules);
  detail::check_segments(segments, parts.size());
  const auto length = static_cast<std::ptrdiff_t>(parts.size()) / segments;
  Value value = input;
  for (int64_t segment = 0; segment < segments; ++segment) {
    const bool is_last = segment + 1 == segments;
    const auto begin = parts.begin() + segment * length;
    std::vector group(begin, is_last ? parts.end() : begin + length);
    auto run = [group = std::move(group)](const Value& first) mutable {
      Value result = first;
      for (auto& part : group) {
        if constexpr (requires { part.template forward<Value>(result); }) {
          result = part.template forward<Value>(result);  // torch::nn::AnyModule
        } else {
          result = detail::call(part, result);
        }
      }
      return result;
    };
    if (is_last) return run(value);
    value = checkpoint(options, run, value);
  }
  return value;
}

}  // namespace accelerant::nn
