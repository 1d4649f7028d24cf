// Where and how a loader delivers its batches. Accelerator::prepare fills one in; programs that do
// without an Accelerator may as well:
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
  // Where the tensors of a batch go. Default: the CPU.
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // Move them there; if false they stay where the data set left them. Default: true.
  bool move = true;
  // Copy to a GPU from pinned memory on a stream of its own, one batch ahead, without blocking the
  // host. The stream that is current when a batch is taken waits for its copy. Default: true.
  bool non_blocking = true;

  // Which process of how many this one is. Default: the only one.
  int64_t rank = 0;
  int64_t num_processes = 1;
  // Each batch is cut into num_processes parts, instead of being for one process. Default: false.
  bool split_batches = false;
  // Complete the last round of batches from the beginning of the order, so that all processes get
  // the same number of batches of the same size. Has no effect on one process. Default: true.
  bool even_batches = true;

  // Rank 0 reads the data set for all processes and sends each its batches, which are those it
  // would have read itself. Default: only for data sets that say so (read_by_one_process, see
  // dataset.h). Has no effect on one process.
  std::optional<bool> dispatch_batches = {};
  // How they are sent; needed where rank 0 reads for all. See batch_channel.h. Default: none.
  std::shared_ptr<BatchChannel> channel = {};
  // The number of this loader among those of the channel: the same in all processes, and another
  // one for each loader. Accelerator::prepare counts. Default: 0.
  int64_t channel_line = 0;

  // What is set here replaces what the loader's options say. Processes need the same seed.
  std::optional<uint64_t> seed = {};
  std::optional<int64_t> workers = {};
  std::optional<int64_t> prefetch = {};

  // Called when a loop over the loader begins (true, before its first batch is made) and when it
  // ends (false), on the thread of the loop. What it throws at the end is logged, not passed on,
  // because that can be while another exception is under way.
  std::function<void(LoaderState&, bool active)> on_loop = {};

  // Called when the loop asks for the next batch, and so has ended its work with the current one.
  // What it throws leaves the loop.
  std::function<void(LoaderState&)> on_batch_end = {};

  // Where the waits of the loop for its batches are recorded. Default: nowhere.
  std::shared_ptr<Timeline> timeline = {};
};

}  // namespace accelerant::data
