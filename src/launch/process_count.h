// How many processes to start.
#pragma once

#include <cstdint>
#include <string>

namespace accelerant::launch {

// The GPUs this process may use, without loading CUDA: those of CUDA_VISIBLE_DEVICES, or where it
// is not set the devices /dev/nvidia0, /dev/nvidia1, ...
int64_t count_gpus();

// Processes over all machines, from a number or from
//   gpu   one for each GPU of this machine, times the machines; an Error if there are none
//   cpu   one for each processor, times the machines
//   auto  as gpu if there are GPUs (and `cpu_only` is false), else as cpu
//   ""    the default: one for each GPU of this machine, or one where there are none
int64_t count_processes(const std::string& text, int64_t num_machines, bool cpu_only);

}  // namespace accelerant::launch
