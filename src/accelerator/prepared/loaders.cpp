#include "accelerator/prepared/loaders.h"

#include <utility>

namespace accelerant::detail {

const std::any* PreparedLoaders::find(const void* original) {
  std::erase_if(loaders_, [](const Prepared& loader) { return loader.state.expired(); });
  for (const Prepared& loader : loaders_) {
    if (loader.original.get() == original || loader.state.lock().get() == original) {
      return &loader.handle;
    }
  }
  return nullptr;
}

void PreparedLoaders::add(std::shared_ptr<const void> original,
                          const std::shared_ptr<data::LoaderState>& state, std::any handle) {
  std::erase_if(loaders_, [&](const Prepared& loader) { return loader.original == original; });
  loaders_.push_back({.number = next_number_++,
                      .original = std::move(original),
                      .state = state,
                      .handle = std::move(handle)});
}

void PreparedLoaders::clear() {
  loaders_.clear();
  next_number_ = 0;
}

std::vector<Registry<data::LoaderState>::Numbered> PreparedLoaders::living() const {
  std::vector<Registry<data::LoaderState>::Numbered> living;
  for (const Prepared& loader : loaders_) {
    if (auto state = loader.state.lock()) living.push_back({loader.number, std::move(state)});
  }
  return living;
}

LoaderProgress PreparedLoaders::progress() const {
  const data::LoaderState* loader = innermost();
  if (loader == nullptr) return {};
  return {.is_last = loader->is_last_batch(),
          .batches_left = loader->batches_left(),
          .samples = loader->current_samples()};
}

}  // namespace accelerant::detail
