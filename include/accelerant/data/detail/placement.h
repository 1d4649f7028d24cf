// Where and how a loader delivers its batches. Accelerator::prepare fills one in. Without an
// Accelerator, do it yourself:
//
//   auto on_gpu = batches.placed({.device = at::Device(at::kCUDA, 0)});
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace accelerant {
class Timeline;
}

namespace accelerant::data {

class BatchChannel;
class LoaderState;

struct Placement {
  // The device for the tensors of a batch. Default: the CPU.
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // Move the tensors there. false: they stay where the data set left them. Default: true.
  bool move = true;
  // Copy to a GPU from pinned memory on a separate stream, one batch ahead, without blocking the
  // host. The current stream at the time a batch is taken waits for its copy. Default: true.
  bool non_blocking = true;

  // The rank of this process, and the number of processes. Default: a single process.
  int64_t rank = 0;
  int64_t num_processes = 1;
  // Cut each batch into num_processes parts, instead of giving whole batches to each process.
  // Default: false.
  bool split_batches = false;
  // Complete the last round of batches from the beginning of the order, so that all processes get
  // the same number of batches of the same size. Has no effect with one process. Default: true.
  bool even_batches = true;

  // Rank 0 reads the data set for all processes and sends each the batches that it would have read
  // itself. Default: only for data sets that ask for it (read_by_one_process, see dataset.h). Has
  // no effect with one process.
  std::optional<bool> dispatch_batches = {};
  // How to send them; required if rank 0 reads for all. See batch_channel.h. Default: none.
  std::shared_ptr<BatchChannel> channel = {};
  // The number of this loader in the channel: the same in all processes, and different for each
  // loader. Accelerator::prepare assigns it. Default: 0.
  int64_t channel_line = 0;

  // Values set here replace the loader's options. All processes need the same seed.
  std::optional<uint64_t> seed = {};
  std::optional<int64_t> workers = {};
  std::optional<int64_t> prefetch = {};

  // Called on the thread of the loop when a loop over the loader begins (true, before its first
  // batch is made) and when it ends (false). Exceptions at the end are logged, not passed on,
  // because another exception may be active.
  std::function<void(LoaderState&, bool active)> on_loop = {};

  // Called when the loop asks for the next batch and is thus done with the current one. Exceptions
  // leave the loop.
  std::function<void(LoaderState&)> on_batch_end = {};

  // Records how long the loop waits for its batches. Default: nowhere.
  std::shared_ptr<Timeline> timeline = {};
};

}  // namespace accelerant::data
