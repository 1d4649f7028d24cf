// A list that kernels read: in host memory for the CPU, with a copy on the device for others.
//
// A CUDA graph needs its own copy, which nothing else writes. Memory allocated during a capture may
// also serve other parts of the graph, so each replay would have to fill it again.
// reserve_for_graph() avoids that.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "compat/device.h"
#include "kernels/amp_kernels.h"

namespace accelerant::optim::detail {

// What graphs need from tables.
struct GraphTables {
  std::vector<at::Tensor> memory = {};              // to keep as long as the graphs live
  std::vector<std::function<void()>> uploads = {};  // to run between capture and first replay
};

// Filled on the host, then uploaded on the current stream without waiting for it.
template <class T>
class DeviceTable {
 public:
  std::vector<T> host;

  // Reserves memory outside of graphs for a table of this size in the next capture. A capture that
  // uses it does not fill its table; the uploads of its GraphTables do.
  void reserve_for_graph(c10::Device device) {
    if (!device.is_cpu()) reserved_ = on_device(device, bytes_of(host));
  }
  void release_reserved() { reserved_.reset(); }

  void upload(c10::Device device, GraphTables& of_graphs) {
    if (device.is_cpu()) {
      copy_.reset();
      return;
    }
    const int64_t bytes = bytes_of(host);
    const auto fits = [&](const at::Tensor& memory) {
      return memory.defined() && memory.device() == device && memory.numel() >= bytes;
    };
    const bool capturing = compat::current_capture(device) != 0;
    if (capturing && fits(reserved_)) {
      copy_ = std::exchange(reserved_, {});
      of_graphs.memory.push_back(copy_);
      of_graphs.uploads.push_back([copy = copy_, values = host] { fill(copy, values); });
    } else if (capturing) {
      copy_ = on_device(device, bytes);
      of_graphs.memory.insert(of_graphs.memory.end(), {copy_, fill(copy_, host)});
    } else {
      if (of_graph_ || !fits(copy_)) copy_ = on_device(device, bytes);
      fill(copy_, host);
    }
    of_graph_ = capturing;  // later steps must not use that memory
  }

  // Replaces the uploaded table by one of several tables of the same size, which are stored one
  // after another in `tables`: the one whose index is in `which`, on the device. Not for use in a
  // capture. Does not change `host`, except on the CPU.
  void upload_chosen(c10::Device device, const std::vector<T>& tables, const at::Tensor& which) {
    const auto size = std::ssize(host);
    if (device.is_cpu()) {
      const auto begin = tables.begin() + which.item<int64_t>() * size;
      std::copy(begin, begin + size, host.begin());
      return;
    }
    const int64_t bytes = bytes_of(host);
    const at::Tensor staging = staged(tables);
    if (sent_by_kernel(copy_, staging, bytes, which)) return;
    const at::Tensor all = staging.to(device, at::kByte, /*non_blocking=*/true).view({-1, bytes});
    at::Tensor chosen = copy_.narrow(0, 0, bytes).view({1, bytes});
    at::index_select_out(chosen, all, 0, which);
  }

  // For kernels. Valid only until the next upload.
  const T* data() const {
    return copy_.defined() ? static_cast<const T*>(copy_.const_data_ptr()) : host.data();
  }

 private:
  static int64_t bytes_of(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size() * sizeof(T));
  }

  static at::Tensor on_device(c10::Device device, int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  }

  // In pinned memory; the allocator reuses a block only after the stream has read it.
  static at::Tensor staged(const std::vector<T>& values) {
    const int64_t bytes = bytes_of(values);
    at::Tensor staging =
        at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    if (bytes > 0)
      std::memcpy(staging.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
    return staging;
  }

  // Returns the memory it is copied from.
  static at::Tensor fill(const at::Tensor& copy, const std::vector<T>& values) {
    at::Tensor staging = staged(values);
    if (values.empty() || sent_by_kernel(copy, staging, staging.numel(), {})) return staging;
    copy.narrow(0, 0, staging.numel()).copy_(staging, /*non_blocking=*/true);
    return staging;
  }

  // Later work on the stream waits about 15 us for a copy engine, so a kernel copies what is small:
  // the first `bytes` bytes, or those of the table whose index is in `which`, one int64 on the
  // device. False if it is not small, or if there are no kernels. What a capture sends must live as
  // long as its graph.
  static bool sent_by_kernel([[maybe_unused]] const at::Tensor& copy,
                             [[maybe_unused]] const at::Tensor& staging,
                             [[maybe_unused]] int64_t bytes,
                             [[maybe_unused]] const at::Tensor& which) {
#if defined(ACCELERANT_WITH_CUDA)
    constexpr auto most = static_cast<int64_t>(kernels::cuda::kMostCopied);
    const bool is_choice_here = !which.defined() || which.device() == copy.device();
    const bool is_small = bytes > 0 && bytes <= most && bytes % 8 == 0;
    if (!copy.is_cuda() || !is_small || !is_choice_here) return false;
    const c10::Device device = copy.device();
    const c10::OptionalDeviceGuard guard(device);
    if (compat::current_capture(device) == 0) {
      const c10::impl::VirtualGuardImpl streams(device.type());
      compat::hold_for(streams.getStream(device), staging);
    }
    kernels::cuda::copy_table(copy.mutable_data_ptr(), staging.const_data_ptr(),
                              static_cast<std::size_t>(bytes),
                              which.defined() ? which.const_data_ptr<int64_t>() : nullptr,
                              compat::current_cuda_stream(device));
    return true;
#else
    return false;
#endif
  }

  at::Tensor copy_;
  bool of_graph_ = false;
  at::Tensor reserved_;
};

}  // namespace accelerant::optim::detail
