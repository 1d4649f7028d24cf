// The options of data::loader.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerant/order/sampler.h"

namespace accelerant::data {

struct LoaderOptions {
  // Samples in a batch, of one process. At least 1. Default: 1.
  int64_t batch_size = 1;
  // Visit the samples in a new random order in every epoch. Not for streams. Default: false.
  bool shuffle = false;
  // Leave out the last batch if it is not full. Default: false.
  bool drop_last = false;
  // What the order and the random streams of samples depend on, besides the epoch. Default: the
  // seed of torch's CPU generator (torch::manual_seed) at the first use of the loader.
  std::optional<uint64_t> seed = {};

  // Threads that make batches in the background; 0: batches are made in the loop's own thread.
  // Batches and their order do not depend on it. Default: 0.
  int64_t workers = 0;
  // Batches that each worker may be ahead. At least 1. Default: 2.
  int64_t prefetch = 2;

  // The order of the samples; instead of `shuffle`. Not for streams. Default: none.
  std::shared_ptr<const Sampler> sampler = nullptr;
  // The batches; instead of `batch_size`, `shuffle`, `drop_last` and `sampler`. Not for streams.
  // Default: none.
  std::shared_ptr<const BatchSampler> batch_sampler = nullptr;
};

}  // namespace accelerant::data
