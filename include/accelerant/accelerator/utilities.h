// Helpers around a training loop, with or without an Accelerator: reproducible random numbers, a
// batch size that fits into memory, and returning memory to the device.
//
//   accelerant::set_seed(42);
//   accelerant::find_executable_batch_size([&](int64_t batch_size) {
//     auto loader = make_loader(batch_size);
//     train(loader);
//   });
//   accelerant::clear_device_cache();
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace accelerant {

struct SetSeedOptions {
  // Add process_index to the seed, so that processes draw different numbers. false: all processes
  // draw the same numbers, for example the same dropout masks.
  bool device_specific = false;

  // Make torch use deterministic algorithms from now on, and throw if an operator has none. May be
  // slower. false keeps the current setting.
  bool deterministic = false;

  // The index of this process, 0 or more. Only used if device_specific is true. Default: the index
  // that the launcher assigned (dist::Environment::detect), or 0 with a single process, as in
  // Accelerate. No Accelerator is needed.
  std::optional<int64_t> process_index = {};
};

// Seeds torch's default generators, on the CPU and on all devices. torch then draws the same
// numbers as Python's torch with the same seed. Other generators, including <random>, are not
// affected.
//
//   accelerant::set_seed(42, {.device_specific = true});  // different in each process
void set_seed(uint64_t seed, const SetSeedOptions& options = {});

struct FindExecutableBatchSizeOptions {
  // The first size to try. At least `minimum`.
  int64_t starting_batch_size = 128;

  // The smallest size to try. At least 1.
  int64_t minimum = 1;

  // Returns the next size after one that did not fit; it must be smaller. Default: nine tenths,
  // rounded down.
  std::function<int64_t(int64_t batch_size)> reduce = {};
};

// Whether an exception means that memory ran out: c10::OutOfMemoryError, std::bad_alloc, the error
// of torch's CPU allocator, or cuDNN's error for sizes that it does not support.
bool is_out_of_memory(const std::exception& error);

namespace detail {

void check(const FindExecutableBatchSizeOptions& options);

// The message of a failed try, without the stack trace that torch adds.
std::string message_of(const std::exception& error);

// Frees cached memory and returns the next size; throws Error if there is none.
int64_t next_batch_size(int64_t failed, const std::string& message,
                        const FindExecutableBatchSizeOptions& options);

}  // namespace detail

// Finds a batch size that fits into memory. Calls function(starting_batch_size), calls it again
// with a smaller size as long as it runs out of memory, and returns its result. The function must
// start from scratch each time: changes that it made outside itself stay. Each retry is logged as a
// warning. Other exceptions are passed on. Throws Error with the last message if no size fits.
//
// Use it in a single process, then give the size to all. Several processes would each find a size
// of their own, and those that continue would wait for those that start again.
template <class Function>
auto find_executable_batch_size(Function&& function,
                                const FindExecutableBatchSizeOptions& options = {}) {
  detail::check(options);
  int64_t batch_size = options.starting_batch_size;
  while (true) {
    std::string message;
    try {
      return function(batch_size);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      message = detail::message_of(error);
    }
    // The exception is gone here, with everything it held, so that memory can be freed too.
    batch_size = detail::next_batch_size(batch_size, message, options);
  }
}

// Frees the memory that torch's allocator caches on all devices, so that other programs can use it.
// Memory that is still in use is not freed. torch itself gains nothing, since it would reuse that
// memory anyway, unless the memory is fragmented. Waits for the device. Does nothing without an
// accelerator.
void clear_device_cache();

}  // namespace accelerant
