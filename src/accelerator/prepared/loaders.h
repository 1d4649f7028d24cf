// The prepared loaders, and the running loops over them.
#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <vector>

#include "accelerant/data/detail/batch_channel.h"
#include "accelerant/data/detail/loader_state.h"
#include "accelerator/loop/accumulation.h"
#include "accelerator/prepared/registry.h"

namespace accelerant::detail {

class PreparedLoaders {
 public:
  // The handle of the prepared loader whose original, or whose own state, is `original`; null if
  // there is none.
  const std::any* find(const void* original);

  // `handle` is a data::Loader<Batch>::Weak.
  void add(std::shared_ptr<const void> original, const std::shared_ptr<data::LoaderState>& state,
           std::any handle);

  void clear();

  // Loaders that are still alive, in the order of preparation.
  std::vector<Registry<data::LoaderState>::Numbered> living() const;

  // Loops may be nested.
  void begin_loop(const data::LoaderState& loader) {
    running_.push_back(&loader);
    have_looped_ = true;
  }
  void end_loop(const data::LoaderState& loader) { std::erase(running_, &loader); }

  // Whether a loop over one of them has ever begun.
  bool have_looped() const { return have_looped_; }

  // The loader of the innermost running loop; null outside all loops.
  const data::LoaderState* innermost() const {
    return running_.empty() ? nullptr : running_.back();
  }

  // The progress of the innermost loop.
  LoaderProgress progress() const;

  std::shared_ptr<data::BatchChannel> channel = nullptr;  // null with one process
  int64_t next_channel_line = 0;                          // the same in all processes

 private:
  struct Prepared {
    int64_t number = 0;                           // in the order of preparation
    std::shared_ptr<const void> original = {};    // kept alive, so that its address is not reused
    std::weak_ptr<data::LoaderState> state = {};  // of the prepared loader
    std::any handle = {};
  };

  std::vector<Prepared> loaders_;
  int64_t next_number_ = 0;
  std::vector<const data::LoaderState*> running_;  // innermost last
  bool have_looped_ = false;
};

}  // namespace accelerant::detail
