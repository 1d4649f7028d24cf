// What steps that are captured as CUDA graphs need of the exchange of a model's gradients.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <string>

#include "accelerant/dist/world.h"
#include "dist/data_parallel.h"

namespace accelerant::dist {

// Whether tensors of the World's device are exchanged on it, in order with its kernels, without the
// host.
bool exchanges_on_device(const World& world);

// Why no graph can hold the exchange, whatever comes; empty if one can.
std::string why_never_captured(const DataParallel& model);

// Whether a forward of the model, or some of its gradients, wait for a backward.
bool waits_for_backward(const DataParallel& model);

// Why the next iteration is not like those after it; empty if it is.
std::string why_not_captured_yet(const DataParallel& model);

// Counts up whenever the memory that is exchanged, or its order, becomes another.
int64_t exchange_generation(const DataParallel& model);

// The stream on which the gradients of the model are added up and exchanged is the one that was
// current when its exchange was set up, or when another holder of its graph came first.
bool is_on_stream(const DataParallel& model, const c10::Stream& stream);

// Sets the exchange up anew, on the current stream, as far as the program holds no graph of the
// model. All that was learnt stays. An iteration that waits_for_backward() is given up. Exchanges
// nothing.
void move_to_current_stream(DataParallel& model);

// Exchanges of messages between hosts so far: of objects, and of descriptions of tensors before
// gather() and reduce().
int64_t exchanged_messages(const World& world);

// Whether the next forward hands on the buffers of rank 0.
bool buffers_are_due(const DataParallel& model);
void set_buffers_due(DataParallel& model, bool due);

}  // namespace accelerant::dist
