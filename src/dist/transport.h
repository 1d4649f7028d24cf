// The exchanges of c10d that collectives are made of, without its headers. Each waits for its end;
// on a GPU it is the current stream that waits. Nothing is compared here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerant/dist/collectives.h"
#include "accelerant/dist/world.h"
#include "dist/packing.h"

namespace accelerant::dist {

// Which of the World's groups carries it.
enum class Channel { data, control };

// `output` has world.size() times the elements of `input`; both are contiguous.
void all_gather(const World& world, Channel channel, const char* name, at::Tensor output,
                at::Tensor input);

// In place; `tensor` is contiguous and of a type that both Gloo and NCCL can add up. No mean.
void all_reduce(const World& world, Channel channel, const char* name, at::Tensor tensor,
                Reduction reduction);

// The tensors of a pack in one exchange, over the data group. In place; all are contiguous.
void all_reduce_pack(const World& world, const char* name, const std::vector<at::Tensor>& tensors,
                     const Pack& pack, Reduction reduction);

// In place; `tensor` is contiguous.
void broadcast_tensor(const World& world, Channel channel, const char* name, at::Tensor tensor,
                      int64_t from_process);

// Returns when all processes have come, or throws an Error that names those missing.
void barrier(const World& world, const std::string& name);

// The number of this call of a collective: the same on all processes if all is well.
int64_t next_call(const World& world);

// An Error unless there is such a process.
void require_rank(const World& world, const char* name, int64_t rank);

}  // namespace accelerant::dist
