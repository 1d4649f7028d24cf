// Activation checkpointing: a part of a model that keeps nothing for backward but its inputs, and
// runs its forward once more when backward comes. It costs the time of that forward and saves the
// memory of all that lies between.
//
//   torch::Tensor forward(torch::Tensor x) {
//     for (auto& block : blocks_) x = accelerant::nn::checkpoint(block, x);
//     return accelerant::nn::checkpoint([this](torch::Tensor h) { return head(h); }, x);
//   }
//
// The meaning is that of torch.utils.checkpoint.checkpoint(use_reentrant=False) in Python. It has
// nothing to do with the checkpoints on disk that save_state() writes.
//
// - The function may be a module. Inputs may be nested (accelerant/tensor/nested.h), and so may
//   results; numbers and strings are passed on.
// - Parameters that the function uses get their gradients, also when no input needs one. All that
//   autograd offers works: gradients of a part, retain_graph, gradients of gradients, checkpoints
//   inside of checkpoints, and data-parallel models, whose gradients are exchanged as ever.
// - The second forward sees the random numbers and the autocast of the first, so dropout drops the
//   same.
// - Without gradients (at::NoGradGuard) the function is just called.
//
// The function is copied and called again in backward, by the thread that runs backward: what it
// captures by reference must live until then. It must do the same for the same inputs; what it does
// besides its result, it does twice. A torch::nn::BatchNorm, for one, counts the batch twice in its
// running statistics, as in Python; ask is_recomputing() where that matters. Put checkpoints inside
// of a model, not around one that prepare() returned.
//
// It needs libtorch's own autograd engine: inside of a Python process, which has another, it is an
// Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/tensor/detail/refill.h"
#include "accelerant/tensor/nested.h"

namespace accelerant::nn {

struct CheckpointOptions {
  // The second forward draws the random numbers of the first, on the CPU and on the GPUs that this
  // process uses. Off, it saves the copying of the generators' states, for functions that draw
  // none. Default: true.
  bool preserve_rng_state = true;

  // Shapes, types and devices of what the second forward computes are compared with those of the
  // first, and parameters must not have changed in between; a difference is an Error. Default:
  // true.
  bool determinism_check = true;

  // The second forward ends as soon as it has made all that backward needs, in the middle of the
  // function. Switch it off for a function whose end must be reached both times. Default: true.
  bool early_stop = true;
};

// Whether the calling thread is in the second forward of a checkpoint.
bool is_recomputing();

class SavedTensorHookSource;

namespace detail {

class CheckpointFrame;

bool records_gradients();

// While it lives, what autograd of this thread saves is not kept but recomputed by `run_again`,
// which gets `inputs` in their order.
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

// Throws the Error if `segments` is not from 1 to `modules`.
void check_segments(int64_t segments, std::size_t modules);

// Modules and pointers to them are called by their forward, everything else as a function.
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

// The parts of a container of modules, or of the one that a module holder holds.
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

// Calls function(inputs...) and returns what it returns. What its forward computed is not kept for
// backward.
template <class F, class... Inputs>
auto checkpoint(const CheckpointOptions& options, F&& function, const Inputs&... inputs) {
  static_assert((UnderstoodNesting<std::decay_t<Inputs>> && ...),
                "an input of checkpoint() may hold tensors that cannot be seen: name the fields of "
                "the struct "
                "(accelerant/tensor/nested.h), or let the function capture it");
  if (!detail::records_gradients()) return detail::call(function, inputs...);

  const std::tuple<std::decay_t<Inputs>...> given(inputs...);
  // The tensors go where outer checkpoints see them; all else stays here.
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

// Runs modules one after the other, in `segments` groups of about the same number; each group but
// the last, whose backward comes at once, is a checkpoint. `modules` is a torch::nn::Sequential or
// a container of modules or functions that take and return a Value (a tensor, as a rule). An Error
// if `segments` is not from 1 to the number of modules.
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
