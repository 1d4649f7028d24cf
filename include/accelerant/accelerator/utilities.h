// What a training may want around its loop, with or without an Accelerator: reproducible random
// numbers, a batch size that fits into memory, and memory given back to the device.
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
  // Add process_index to the seed, so that processes draw different numbers. By default all draw
  // the same, for example the same dropout masks.
  bool device_specific = false;

  // Make torch use deterministic algorithms from now on, and throw where an operator has none. It
  // can cost speed. false leaves the setting as it is.
  bool deterministic = false;

  // The number of this process, 0 or more. Only used if device_specific. Default: the one that the
  // launcher gave it (dist::Environment::detect), 0 where one process runs; as in Accelerate. There
  // need be no Accelerator yet.
  std::optional<int64_t> process_index = {};
};

// Seeds torch's default generators, on the CPU and on all devices. The numbers that torch draws are
// then those of Python's torch with the same seed. Generators of your own, and <random>, are not
// touched.
//
//   accelerant::set_seed(42, {.device_specific = true});  // other numbers in each process
void set_seed(uint64_t seed, const SetSeedOptions& options = {});

struct FindExecutableBatchSizeOptions {
  // The first size that is tried. At least `minimum`.
  int64_t starting_batch_size = 128;

  // The smallest size that is tried. At least 1.
  int64_t minimum = 1;

  // The next size after one that did not fit; must be smaller. Default: nine tenths, rounded down.
  std::function<int64_t(int64_t batch_size)> reduce = {};
};

// Whether an exception says that memory ran out: c10::OutOfMemoryError, std::bad_alloc, the error
// of torch's CPU allocator, or that of cuDNN for sizes that it cannot do.
bool is_out_of_memory(const std::exception& error);

namespace detail {

void check(const FindExecutableBatchSizeOptions& options);

// What a failed try said, without the stack trace that torch adds.
std::string message_of(const std::exception& error);

// Frees cached memory and tells the next size; throws Error if there is none.
int64_t next_batch_size(int64_t failed, const std::string& message,
                        const FindExecutableBatchSizeOptions& options);

}  // namespace detail

// Finds a batch size that fits into memory, by trying: calls function(starting_batch_size), and
// again with a smaller size as long as it runs out of memory, and returns what it returns. So it
// must start from scratch each time: what it changed outside stays changed. Each retry is logged as
// a warning. Other exceptions pass. Throws Error with the last message if no size fits.
//
// With several processes each would find a size of its own, and those that go on would wait for
// those that start again. Find the size in one process first, then give it to all.
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
    // Here the exception and all that it held are gone, so that their memory can be freed too.
    batch_size = detail::next_batch_size(batch_size, message, options);
  }
}

// Frees the device memory that torch's allocator keeps for reuse, on all devices; other programs
// can then have it. Nothing can be freed that somebody still holds. It does not make more room for
// torch itself, which would reuse that memory anyway, unless it is in pieces. Waits for the device.
// Without an accelerator nothing happens.
void clear_device_cache();

}  // namespace accelerant
