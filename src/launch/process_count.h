// How many processes to start.
#pragma once

#include <cstdint>
#include <string>

namespace accelerant::launch {

// How many GPUs this process may use, without loading CUDA: those in CUDA_VISIBLE_DEVICES, or if it
// is not set the devices /dev/nvidia0, /dev/nvidia1, ...
int64_t count_gpus();

// The number of processes on all machines together. `text` is a number or
//   gpu   one per GPU of this machine, times the machines; an Error if there is none
//   cpu   one per processor, times the machines
//   auto  as gpu if there are GPUs (and `cpu_only` is false), else as cpu
//   ""    the default: one per GPU of this machine, or one if there is none, times the machines
int64_t count_processes(const std::string& text, int64_t num_machines, bool cpu_only);

}  // namespace accelerant::launch
