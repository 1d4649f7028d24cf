// Operators and kernels, as torch's own profiler (Kineto) records them. In the thread of the
// training only.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "accelerant/accelerator/options.h"

namespace accelerant::detail {

class KernelTrace {
 public:
  KernelTrace(const ProfileOptions& options, c10::Device device)
      : options_(options), device_(device) {}
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  // The first time takes long; start() does it where nobody else has.
  void prepare();
  void start();
  // Writes what was recorded since. Nothing is recorded any more, also if that fails.
  void stop(const std::string& path);

 private:
  ProfileOptions options_;
  c10::Device device_;
  bool is_prepared_ = false;
  bool is_running_ = false;
};

}  // namespace accelerant::detail
