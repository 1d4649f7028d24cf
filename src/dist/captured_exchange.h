// What steps captured as CUDA graphs need from the exchange of a model's gradients.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <string>

#include "accelerant/dist/world.h"
#include "dist/data_parallel.h"

namespace accelerant::dist {

// Whether tensors on the World's device are exchanged there, in order with its kernels, without the
// host.
bool exchanges_on_device(const World& world);

// Why no graph can ever contain the exchange; empty if one can.
std::string why_never_captured(const DataParallel& model);

// Whether a forward of the model, or some of its gradients, still wait for a backward.
bool waits_for_backward(const DataParallel& model);

// Why the next iteration differs from those after it; empty if it does not.
std::string why_not_captured_yet(const DataParallel& model);

// Incremented whenever the memory that is exchanged, or its order, changes.
int64_t exchange_generation(const DataParallel& model);

// Whether the model's gradients are accumulated and exchanged on this stream: the one that was
// current when the exchange was set up, or when another holder of its graph came first.
bool is_on_stream(const DataParallel& model, const c10::Stream& stream);

// Sets up the exchange again on the current stream, unless the program holds a graph of the model.
// Keeps everything that was learnt. Abandons an iteration for which waits_for_backward() is true.
// Exchanges nothing.
void move_to_current_stream(DataParallel& model);

// The number of messages exchanged between hosts so far: objects, and descriptions of tensors
// before gather() and reduce().
int64_t exchanged_messages(const World& world);

// Whether the next forward distributes the buffers of rank 0.
bool buffers_are_due(const DataParallel& model);
void set_buffers_due(DataParallel& model, bool due);

}  // namespace accelerant::dist
