// The options of data::loader.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerant/order/sampler.h"

namespace accelerant::data {

struct LoaderOptions {
  // Samples in a batch of one process. At least 1. Default: 1.
  int64_t batch_size = 1;
  // Visit the samples in a new random order in every epoch. Not for streams. Default: false.
  bool shuffle = false;
  // Drop the last batch if it is not full. Default: false.
  bool drop_last = false;
  // The seed for the order and for the random numbers of samples; these also depend on the epoch.
  // Default: the seed of torch's CPU generator (torch::manual_seed) at the first use of the loader.
  std::optional<uint64_t> seed = {};

  // Threads that make batches in the background; 0: the loop's own thread makes them. The batches
  // and their order do not depend on it. Default: 0.
  int64_t workers = 0;
  // Batches that each worker prepares ahead. At least 1. Default: 2.
  int64_t prefetch = 2;

  // The order of the samples; replaces `shuffle`. Not for streams. Default: none.
  std::shared_ptr<const Sampler> sampler = nullptr;
  // The batches; replaces `batch_size`, `shuffle`, `drop_last` and `sampler`. Not for streams.
  // Default: none.
  std::shared_ptr<const BatchSampler> batch_sampler = nullptr;
};

}  // namespace accelerant::data
