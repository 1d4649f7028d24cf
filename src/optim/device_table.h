// A list that kernels read: in host memory for the CPU, with a copy on the device for others.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "compat/cuda_stream.h"

namespace accelerant::optim::detail {

// Filled on the host, then uploaded to the current stream without waiting for it.
template <class T>
class DeviceTable {
 public:
  std::vector<T> host;

  // What a graph needs of it goes to `of_graphs`.
  void upload(c10::Device device, std::vector<at::Tensor>& of_graphs) {
    if (device.is_cpu()) {
      copy_.reset();
      return;
    }
    const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
    // A graph brings its own table to its own place at every replay: later steps must not use that place.
    const bool capturing = compat::current_capture(device) != 0;
    if (capturing || of_graph_ || !copy_.defined() || copy_.device() != device ||
        copy_.numel() < bytes) {
      copy_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    }
    of_graph_ = capturing;
    if (bytes == 0) return;
    at::Tensor staging = staged(host);
    copy_.narrow(0, 0, bytes).copy_(staging, /*non_blocking=*/true);
    if (capturing) of_graphs.insert(of_graphs.end(), {copy_, std::move(staging)});
  }

  // Replaces what was uploaded by one of several tables of the same size, which follow each other in `tables`: the one
  // with the number that `which` has on the device. Not in a capture. `host` stays as it is, except on the CPU.
  void upload_chosen(c10::Device device, const std::vector<T>& tables, const at::Tensor& which) {
    const auto size = std::ssize(host);
    if (device.is_cpu()) {
      const auto begin = tables.begin() + which.item<int64_t>() * size;
      std::copy(begin, begin + size, host.begin());
      return;
    }
    const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
    const at::Tensor all =
        staged(tables).to(device, at::kByte, /*non_blocking=*/true).view({-1, bytes});
    at::Tensor chosen = copy_.narrow(0, 0, bytes).view({1, bytes});
    at::index_select_out(chosen, all, 0, which);
  }

  // For kernels. Only until the next upload.
  const T* data() const {
    return copy_.defined() ? static_cast<const T*>(copy_.const_data_ptr()) : host.data();
  }

 private:
  // In pinned memory, of which the allocator hands a block out again only when the stream has read it.
  static at::Tensor staged(const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    at::Tensor staging = at::empty({static_cast<int64_t>(bytes)},
                                   at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    std::memcpy(staging.mutable_data_ptr(), values.data(), bytes);
    return staging;
  }

  at::Tensor copy_;
  bool of_graph_ = false;
};

}  // namespace accelerant::optim::detail
