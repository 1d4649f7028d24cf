// Creates process groups of c10d.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerant/watch/environment.h"
#include "accelerant/watch/process_group_options.h"

namespace accelerant::dist {

// A group for CPU tensors and, if the device is another, for tensors on it. All processes must call
// this at the same time with the same name.
c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const std::string& name,
                                                  const Environment& environment,
                                                  const ProcessGroupOptions& options,
                                                  c10::Device device);

}  // namespace accelerant::dist
