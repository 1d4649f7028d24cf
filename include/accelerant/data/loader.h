// Iterates over the batches of a data set, epoch after epoch.
//
//   auto batches = data::loader(dataset, {.batch_size = 64, .shuffle = true});
//   for (auto&& [images, labels] : batches) ...
//
// Each loop over a loader is one epoch, and the next loop is the next epoch, however the last one
// ended. The members of LoaderState, which a Loader has too, give the progress of a loop
// (is_last_batch, position, ...) and save it (state_dict). The order is a function of (seed,
// epoch), so set_epoch repeats an epoch exactly, and load_state_dict continues in the middle of
// one. Workers make batches in the background without changing the result.
//
// Data sets of torch::data are loaded like any other. A loader of torch::data is a stream of ready
// batches. It is borrowed if passed by reference, and owned or shared if passed by pointer:
//
//   auto torch_loader = torch::data::make_data_loader(dataset, 64);
//   auto batches = data::loader(data::stream_of(std::move(torch_loader)));
//
// A Loader is a handle: copies share the data set and the position in it. Only one loop may run at
// a time. See dataset.h for data sets and their ownership, collate.h for how samples become a
// batch, and loader_options.h for the options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/data/dataset.h"
#include "accelerant/data/detail/loader_state.h"
#include "accelerant/data/detail/loop.h"
#include "accelerant/data/detail/placement.h"
#include "accelerant/data/detail/source.h"
#include "accelerant/data/detail/stream_source.h"
#include "accelerant/data/detail/torch_data.h"
#include "accelerant/data/loader_options.h"

namespace accelerant::data {

template <class Batch>
class Loader : public LoaderHandle {
 public:
  using BatchType = Batch;
  class Iterator;

  Loader() = default;

  Loader(std::shared_ptr<detail::Source<Batch>> source, LoaderOptions options,
         Placement placement = {})
      : LoaderHandle(accelerant::detail::make_shared_for_process<LoaderState>(options, placement,
                                                                              source->traits())),
        source_(std::move(source)),
        options_(std::make_shared<const LoaderOptions>(std::move(options))),
        placement_(std::make_shared<const Placement>(std::move(placement))) {}

  // Begins a loop, and with it an epoch. The loop ends at its end, or when the last copy of the
  // iterator is destroyed.
  Iterator begin() const { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

  // Always a compile-time error: unlike torch::data::make_data_loader, which returns a pointer, a
  // Loader is looped over as it is.
  template <class T = void>
  Loader& operator*() const {
    static_assert(!std::is_void_v<T>,
                  "a Loader is not a pointer: write for (auto&& batch : loader)");
    return const_cast<Loader&>(*this);
  }

  // A loader over the same data set that delivers batches as the placement says. It starts at the
  // epoch and position of this loader and is independent from then on. Accelerator::prepare returns
  // such a loader.
  Loader placed(const Placement& placement) const {
    Loader result(source_, options(), placement);
    result.state()->start_like(*state());
    return result;
  }

  // A handle that keeps nothing alive.
  class Weak {
   public:
    explicit Weak(const Loader& loader)
        : state_(loader.state()),
          source_(loader.source_),
          options_(loader.options_),
          placement_(loader.placement_) {}

    // Empty if the last handle is gone.
    std::optional<Loader> lock() const {
      Loader loader(state_.lock(), source_.lock(), options_.lock(), placement_.lock());
      if (!loader.source_ || !loader.options_ || !loader.placement_) return std::nullopt;
      return loader;
    }

   private:
    std::weak_ptr<LoaderState> state_;
    std::weak_ptr<detail::Source<Batch>> source_;
    std::weak_ptr<const LoaderOptions> options_;
    std::weak_ptr<const Placement> placement_;
  };

  const LoaderOptions& options() const {
    state();
    return *options_;
  }
  const Placement& placement() const {
    state();
    return *placement_;
  }

 private:
  Loader(std::shared_ptr<LoaderState> state, std::shared_ptr<detail::Source<Batch>> source,
         std::shared_ptr<const LoaderOptions> options, std::shared_ptr<const Placement> placement)
      : LoaderHandle(std::move(state)),
        source_(std::move(source)),
        options_(std::move(options)),
        placement_(std::move(placement)) {}

  std::shared_ptr<detail::Source<Batch>> source_;
  std::shared_ptr<const LoaderOptions> options_;
  std::shared_ptr<const Placement> placement_;
};

// An input iterator: one pass, one batch at a time. Dereferencing returns a reference that the next
// ++ overwrites; move or copy what you need longer.
template <class Batch>
class Loader<Batch>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  explicit Iterator(const Loader& loader)
      : loop_(accelerant::detail::make_shared_for_process<detail::Loop<Batch>>(
            loader.source_, loader.state(), loader.options(), loader.placement())) {}

  Batch& operator*() const { return loop_->batch(); }
  Batch* operator->() const { return &loop_->batch(); }
  Iterator& operator++() {
    loop_->advance();
    return *this;
  }
  void operator++(int) { loop_->advance(); }
  friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
    return iterator.loop_->is_over();
  }

 private:
  std::shared_ptr<detail::Loop<Batch>> loop_;
};

namespace detail {

// Throws Error: a pointer to a data set is null.
[[noreturn]] void refuse_missing_dataset();

// The type that a smart pointer points to; void for all other types.
template <class T>
struct Pointee {
  using type = void;
};
template <class T>
struct Pointee<std::shared_ptr<T>> {
  using type = T;
};
template <class T, class Deleter>
struct Pointee<std::unique_ptr<T, Deleter>> {
  using type = T;
};
template <class T>
using pointee_t = typename Pointee<T>::type;

}  // namespace detail

// Creates a loader over the data set, which is copied (lvalue), moved (rvalue) or shared
// (shared_ptr). `collate_function` makes a batch from a std::vector of samples; the default is
// collate().
template <class D, class Collate = detail::DefaultCollate>
auto loader(D&& dataset, LoaderOptions options = {}, Collate collate_function = {}) {
  using Pointee = detail::pointee_t<std::remove_cvref_t<D>>;
  constexpr bool is_pointer = !std::is_void_v<Pointee>;
  using Set = std::conditional_t<is_pointer, std::remove_const_t<Pointee>, std::remove_cvref_t<D>>;
  static_assert(Dataset<Set>,
                "this is not a data set: it needs size() and get(index), or size() and "
                "get_batch(indices), or next() (see data/dataset.h); wrap a loader of torch::data "
                "in data::stream_of");
  std::shared_ptr<Set> set;
  if constexpr (is_pointer) {
    static_assert(!std::is_const_v<Pointee> || detail::const_is_enough<Set>(),
                  "a pointer to a const data set needs a const get or get_batch");
    set = std::const_pointer_cast<Set>(std::shared_ptr<Pointee>(std::forward<D>(dataset)));
    if (!set) detail::refuse_missing_dataset();
  } else {
    set = std::make_shared<Set>(std::forward<D>(dataset));
  }
  if constexpr (detail::AnyIndexed<Set>) {
    using Source = detail::IndexedSource<Set, Collate>;
    auto source = accelerant::detail::make_shared_for_process<Source>(std::move(set), !is_pointer,
                                                                      std::move(collate_function));
    return Loader<typename Source::Batch>(std::move(source), std::move(options));
  } else if constexpr (detail::AnyStream<Set>) {
    using Source = detail::StreamSource<Set, Collate>;
    auto source = accelerant::detail::make_shared_for_process<Source>(std::move(set),
                                                                      std::move(collate_function));
    return Loader<typename Source::Batch>(std::move(source), std::move(options));
  }
}

// Makes the next loop over the loader skip its first n batches. Returns the same loader.
template <class Batch>
Loader<Batch> skip_first_batches(const Loader<Batch>& loader, int64_t n) {
  loader.skip_first_batches(n);
  return loader;
}

}  // namespace accelerant::data
