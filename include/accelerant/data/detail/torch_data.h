// Connects torch::data with the loader.
//
// Data sets of torch::data work with data::loader unchanged: those with get(index), mapped ones
// (`dataset.map(Stack<>())`), stateful and stream ones. torch::data::Example is collated field by
// field, and `auto& [data, target]` works on it.
//
// A loader of torch::data is a stream of ready batches:
//
//   auto torch_loader = torch::data::make_data_loader(dataset, 64);
//   auto batches = data::loader(data::stream_of(std::move(torch_loader)));
//
// Passed by reference, it is borrowed and must outlive the loader; passed by pointer, it is owned
// or shared. It determines its own order, so a resumed run repeats that order only if the program
// uses the same seed. With several processes rank 0 reads for all, unless
// Placement::dispatch_batches is false.
//
// Includes no header of torch::data: its types are only declared here.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "accelerant/tensor/detail/children.h"

namespace torch::data {
template <typename Data, typename Target>
struct Example;
template <typename Dataset, typename Batch, typename BatchRequest>
class DataLoaderBase;
}  // namespace torch::data

namespace accelerant {

template <class Data, class Target>
struct NestedFields<torch::data::Example<Data, Target>> {
  static void visit(auto& self, auto&& visitor) {
    visitor(self.data);
    if constexpr (requires { self.target; }) visitor(self.target);
  }
};

namespace data {

// A stream of ready batches, which are handed out one by one, unchanged.
template <class TorchLoader>
class TorchLoaderStream {
 public:
  using Batch = typename TorchLoader::BatchType;
  static constexpr bool gives_batches = true;
  static constexpr bool read_by_one_process = true;  // samplers draw from torch's global generator

  explicit TorchLoaderStream(std::shared_ptr<TorchLoader> loader) : loader_(std::move(loader)) {}

  // Restarts the torch loader from the beginning.
  void reset() {
    drain();
    iterator_.emplace(loader_->begin());
    fresh_ = true;
  }

  std::optional<Batch> next() {
    if (!iterator_) reset();
    if (!std::exchange(fresh_, false)) ++*iterator_;
    if (*iterator_ == loader_->end()) return std::nullopt;
    return std::move(**iterator_);
  }

 private:
  using Iterator = decltype(std::declval<TorchLoader&>().begin());

  // A torch loader cannot restart while its workers still have batches to deliver.
  void drain() {
    std::optional<Iterator> left = std::exchange(iterator_, std::nullopt);
    if (!left || loader_->options().workers == 0) return;
    while (*left != loader_->end()) ++*left;
  }

  std::shared_ptr<TorchLoader> loader_;
  std::optional<Iterator> iterator_;
  bool fresh_ = false;
};

// Borrows the torch loader.
template <class D, class B, class R>
auto stream_of(torch::data::DataLoaderBase<D, B, R>& loader) {
  using Base = torch::data::DataLoaderBase<D, B, R>;
  return TorchLoaderStream<Base>(std::shared_ptr<Base>(std::shared_ptr<void>(), &loader));
}

// Owns or shares the torch loader.
template <class TorchLoader>
auto stream_of(std::unique_ptr<TorchLoader> loader) {
  return TorchLoaderStream<TorchLoader>(std::move(loader));
}
template <class TorchLoader>
auto stream_of(std::shared_ptr<TorchLoader> loader) {
  return TorchLoaderStream<TorchLoader>(std::move(loader));
}

}  // namespace data
}  // namespace accelerant
