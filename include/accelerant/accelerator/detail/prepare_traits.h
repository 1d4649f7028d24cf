// Determines at compile time what kind of object Accelerator::prepare got.
#pragma once

#include <concepts>
#include <type_traits>

#include "accelerant/accelerator/model.h"
#include "accelerant/accelerator/optimizer.h"
#include "accelerant/data/detail/torch_data.h"
#include "accelerant/data/loader.h"
#include "accelerant/optim/lr_scheduler.h"

namespace torch::jit {
struct Module;
}

namespace torch::optim {
class LRScheduler;
}

namespace accelerant::detail {

enum class Role { model, optimizer, loader, scheduler, none };

template <class T>
inline constexpr bool is_loader = false;
template <class Batch>
inline constexpr bool is_loader<data::Loader<Batch>> = true;

using data::detail::pointee_t;

template <class T>
concept OptimizerObject = std::is_class_v<T> && std::derived_from<T, torch::optim::Optimizer>;

template <class T>
concept TorchScheduler = std::is_class_v<T> && std::derived_from<T, torch::optim::LRScheduler>;

// Never called: the concept below only checks that the call would compile.
template <class Dataset, class Batch, class Request>
void accept_torch_loader(torch::data::DataLoaderBase<Dataset, Batch, Request>&);

template <class T>
concept TorchDataLoader = std::is_class_v<T> && requires(T& loader) {
  accept_torch_loader(loader);
};

template <class T>
concept JitModule = std::same_as<T, torch::jit::Module>;

template <class Object, class T = std::remove_cvref_t<Object>>
consteval Role role_of() {
  using Target = pointee_t<T>;
  if constexpr (std::derived_from<T, ModelBase> || JitModule<T> || ModuleHolder<T> ||
                ModuleObject<T> || ModuleObject<Target>) {
    return Role::model;
  } else if constexpr (std::same_as<T, Optimizer> || OptimizerObject<T> ||
                       OptimizerObject<Target>) {
    return Role::optimizer;
  } else if constexpr (is_loader<T> || TorchDataLoader<T> || TorchDataLoader<Target>) {
    return Role::loader;
  } else if constexpr (std::same_as<T, Scheduler> || std::same_as<T, optim::LrScheduler> ||
                       std::same_as<T, optim::ReduceLrOnPlateau> || TorchScheduler<T>) {
    return Role::scheduler;
  } else {
    return Role::none;
  }
}

// Gives the compile-time error for an object that cannot be prepared.
template <class Object>
consteval void require_preparable() {
  static_assert(
      role_of<Object>() != Role::none,
      "Accelerator::prepare takes models (torch::nn module holders, shared pointers to modules, "
      "module objects, torch::jit::Module), optimizers (torch::optim), loaders "
      "(accelerant::data::loader, torch::data loaders) and schedules (accelerant::optim, "
      "torch::optim::LRScheduler); this argument is none of them. Wrap a data set in "
      "accelerant::data::loader first");
}

// A borrowed object must have a name; a temporary would be gone after the call.
template <class Object>
consteval void require_named() {
  static_assert(std::is_lvalue_reference_v<Object>,
                "Accelerator::prepare borrows this object, so it must outlive the training: give "
                "it a name and pass that, or pass a shared pointer");
}

}  // namespace accelerant::detail
