// A data set of numbers with plain lists as batches, so tests of order and threads need no tensors.
#pragma once

#include <accelerant/data/loader.h>

#include <algorithm>
#include <cstdint>
#include <vector>

// Sample i is i; a batch is the list of its indices.
struct IndexDataset {
  int64_t length = 0;
  int64_t size() const { return length; }
  int64_t get(int64_t index) const { return index; }
};

using IndexBatch = std::vector<int64_t>;
using IndexBatches = std::vector<IndexBatch>;
using IndexLoader = accelerant::data::Loader<IndexBatch>;

inline IndexBatch as_list(std::vector<int64_t> samples) { return samples; }

template <accelerant::data::Dataset D>
IndexLoader index_loader(D dataset, accelerant::data::LoaderOptions options = {}) {
  return accelerant::data::loader(std::move(dataset), std::move(options), as_list);
}

inline IndexLoader index_loader(int64_t length, accelerant::data::LoaderOptions options = {}) {
  return index_loader(IndexDataset{length}, std::move(options));
}

// All batches of one loop.
inline IndexBatches loop_over(const IndexLoader& loader) {
  IndexBatches batches;
  for (const IndexBatch& batch : loader) batches.push_back(batch);
  return batches;
}

// What a loader of known length reports at each batch of one loop.
struct Course {
  std::vector<bool> last;
  std::vector<int64_t> left;
  std::vector<int64_t> samples;
  std::vector<int64_t> position;
};

inline Course course_of(const IndexLoader& loader) {
  Course course;
  for ([[maybe_unused]] const IndexBatch& batch : loader) {
    course.last.push_back(loader.is_last_batch());
    course.left.push_back(loader.batches_left().value());
    course.samples.push_back(loader.current_samples());
    course.position.push_back(loader.position());
  }
  return course;
}

inline IndexBatch joined(const IndexBatches& batches) {
  IndexBatch all;
  for (const IndexBatch& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

inline IndexBatch sorted(IndexBatch values) {
  std::sort(values.begin(), values.end());
  return values;
}

inline IndexBatch counting(int64_t length, int64_t first = 0) {
  IndexBatch values;
  for (int64_t i = first; i < length; ++i) values.push_back(i);
  return values;
}
