// The templates of Accelerator that dispatch on the type of their argument.
#pragma once

#include "accelerant/accelerator/accelerator.h"

namespace accelerant {

template <class M>
auto Accelerator::prepare_model(M&& model, const PrepareModelOptions& options) {
  using T = std::remove_cvref_t<M>;
  static_assert(!std::is_const_v<std::remove_reference_t<M>> || !detail::ModuleObject<T>,
                "Accelerator::prepare moves and trains the module, so it cannot be const");
  if constexpr (std::derived_from<T, ModelBase>) {
    require_own(model);
    return T(model);
  } else if constexpr (detail::JitModule<T>) {
    detail::require_named<M>();
    return Model<T>(register_module(model, options));
  } else if constexpr (detail::ModuleHolder<T>) {
    // ptr() of an empty holder throws.
    const bool empty = model.is_empty();
    return Model<T>(register_module(empty ? nullptr : model.ptr(), options), {.holder = model});
  } else if constexpr (detail::ModuleObject<detail::pointee_t<T>>) {
    static_assert(
        requires { model.use_count(); },
        "Accelerator::prepare takes modules by reference, holder or shared pointer");
    return Model<detail::pointee_t<T>>(register_module(model, options), {.pointer = model});
  } else {
    static_assert(detail::ModuleObject<T>,
                  "Accelerator::prepare_model takes a torch::nn module holder, a shared pointer to "
                  "a module, a module object or a torch::jit::Module");
    detail::require_named<M>();
    // Borrowed: the pointer does not own the module.
    const std::shared_ptr<T> borrowed(std::shared_ptr<void>(), &model);
    return Model<T>(register_module(borrowed, options), {.pointer = borrowed});
  }
}

template <class L>
auto Accelerator::prepare_data_loader(L&& loader) {
  using T = std::remove_cvref_t<L>;
  if constexpr (detail::TorchDataLoader<detail::pointee_t<T>>) {
    detail::require_named<L>();
    return prepare_data_loader(*loader);
  } else if constexpr (detail::TorchDataLoader<T>) {
    detail::require_named<L>();
    using Prepared = decltype(data::loader(data::stream_of(loader)));
    const std::shared_ptr<const void> borrowed(std::shared_ptr<void>(), &loader);
    return prepare_loader_once<Prepared>(borrowed,
                                         [&] { return data::loader(data::stream_of(loader)); });
  } else {
    static_assert(detail::is_loader<T>,
                  "Accelerator::prepare_data_loader takes a loader made by "
                  "accelerant::data::loader or a torch::data loader");
    return prepare_loader_once<T>(loader.state(), [&] { return loader; });
  }
}

template <class Prepared, class Make>
Prepared Accelerator::prepare_loader_once(const std::shared_ptr<const void>& original,
                                          Make&& make) {
  if (const std::any* known = find_loader(original.get())) {
    // A handle of another type comes from a loader that is gone and whose address was reused.
    if (const auto* weak = std::any_cast<typename Prepared::Weak>(known)) {
      if (auto loader = weak->lock()) return *loader;
    }
  }
  const Prepared given = make();
  Prepared prepared = given.placed(placement_of(given));
  add_loader(original, prepared.state(), typename Prepared::Weak(prepared));
  return prepared;
}

template <class Object>
auto Accelerator::prepare_one(Object&& object) {
  using T = std::remove_cvref_t<Object>;
  constexpr detail::Role role = detail::role_of<Object>();
  if constexpr (role == detail::Role::model) {
    return prepare_model(std::forward<Object>(object));
  } else if constexpr (role == detail::Role::optimizer) {
    if constexpr (detail::OptimizerObject<T>) detail::require_named<Object>();
    if constexpr (requires { object.get_deleter(); }) {
      detail::require_named<Object>();
      return prepare_optimizer(*object);
    } else {
      return prepare_optimizer(object);
    }
  } else if constexpr (role == detail::Role::loader) {
    return prepare_data_loader(std::forward<Object>(object));
  } else if constexpr (role == detail::Role::scheduler) {
    if constexpr (detail::TorchScheduler<T>) detail::require_named<Object>();
    return prepare_scheduler(std::forward<Object>(object));
  }
}

template <detail::Role role, class Object>
auto Accelerator::prepare_early(Object& object) {
  if constexpr (detail::role_of<Object&>() == role) {
    return prepare_one(object);
  } else {
    return std::monostate();
  }
}

template <class... Objects>
auto Accelerator::prepare(Objects&&... objects) {
  static_assert(sizeof...(Objects) > 0, "Accelerator::prepare needs something to prepare");
  (detail::require_preparable<Objects>(), ...);
  // Move models before the state of their optimizers, whatever the order of the arguments. The
  // handles keep the models registered until they are returned.
  const std::tuple models{prepare_early<detail::Role::model>(objects)...};
  if constexpr (sizeof...(Objects) == 1) {
    return prepare_one(std::forward<Objects>(objects)...);
  } else {
    return std::tuple{prepare_one(std::forward<Objects>(objects))...};
  }
}

}  // namespace accelerant
