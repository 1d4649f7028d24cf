// Records operators and kernels with torch's own profiler (Kineto). Use it from the training thread
// only.
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

  // Slow the first time. start() calls it if needed.
  void prepare();
  void start();
  // Writes what was recorded since start(). Recording ends even if writing fails.
  void stop(const std::string& path);

 private:
  ProfileOptions options_;
  c10::Device device_;
  bool is_prepared_ = false;
  bool is_running_ = false;
};

}  // namespace accelerant::detail
