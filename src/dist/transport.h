// The c10d exchanges that collectives are built on, without c10d's headers. Each waits for its
// completion; on a GPU, the current stream waits. Nothing is compared here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerant/dist/collectives.h"
#include "accelerant/dist/world.h"
#include "dist/packing.h"

namespace accelerant::dist {

// Which of the World's groups to use.
enum class Channel { data, control };

// `output` has world.size() times the elements of `input`; both are contiguous.
void all_gather(const World& world, Channel channel, const char* name, at::Tensor output,
                at::Tensor input);

// In place; `tensor` is contiguous and of a type that both Gloo and NCCL can sum. No mean.
void all_reduce(const World& world, Channel channel, const char* name, at::Tensor tensor,
                Reduction reduction);

// The tensors of a pack in one exchange, over the data group. In place; all are contiguous.
void all_reduce_pack(const World& world, const char* name, const std::vector<at::Tensor>& tensors,
                     const Pack& pack, Reduction reduction);

// In place; `tensor` is contiguous.
void broadcast_tensor(const World& world, Channel channel, const char* name, at::Tensor tensor,
                      int64_t from_process);

// Returns when all processes have arrived, or throws an Error that names the missing ones.
void barrier(const World& world, const std::string& name);

// The number of this call of a collective: normally the same on all processes.
int64_t next_call(const World& world);

// Throws Error unless there is such a process.
void require_rank(const World& world, const char* name, int64_t rank);

}  // namespace accelerant::dist
