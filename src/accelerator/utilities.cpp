#include "accelerant/accelerator/utilities.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <new>
#include <string_view>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/watch/environment.h"
#include "compat/device.h"

namespace accelerant {
namespace {

// Out-of-memory errors without a type of their own: the two messages of the CPU allocator, MPS, and
// sizes that cuDNN does not support.
constexpr std::array<std::string_view, 4> kOutOfMemoryTexts = {
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
};

}  // namespace

void set_seed(uint64_t seed, const SetSeedOptions& options) {
  if (options.process_index.value_or(0) < 0) {
    throw Error(ErrorDetails{.problem = "set_seed: process_index is out of range",
                             .expected = "0 or more",
                             .got = c10::str(*options.process_index)});
  }
  if (options.device_specific) {
    const int64_t process =
        options.process_index ? *options.process_index : dist::Environment::detect().process_index;
    seed += static_cast<uint64_t>(process);
  }
  at::manual_seed(seed);
  if (options.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  if (torch_error == nullptr) return false;
  const std::string_view message = torch_error->what_without_backtrace();
  for (const std::string_view text : kOutOfMemoryTexts) {
    if (message.find(text) != std::string_view::npos) return true;
  }
  return false;
}

namespace detail {

void check(const FindExecutableBatchSizeOptions& options) {
  if (options.minimum >= 1 && options.starting_batch_size >= options.minimum) return;
  throw Error(ErrorDetails{.problem = "find_executable_batch_size: no batch size to try",
                           .expected = "1 <= minimum <= starting_batch_size",
                           .got = c10::str("minimum ", options.minimum, ", starting_batch_size ",
                                           options.starting_batch_size)});
}

std::string message_of(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

int64_t next_batch_size(int64_t failed, const std::string& message,
                        const FindExecutableBatchSizeOptions& options) {
  clear_device_cache();
  const int64_t next = options.reduce ? options.reduce(failed)
                                      : static_cast<int64_t>(static_cast<double>(failed) * 0.9);
  if (next >= failed) {
    throw Error(ErrorDetails{
        .problem = "find_executable_batch_size: reduce() returned a size that is not smaller",
        .expected = c10::str("a size below ", failed),
        .got = c10::str(next)});
  }
  if (next < options.minimum) {
    throw Error(ErrorDetails{.problem = "No executable batch size found",
                             .expected = c10::str("a batch of ", failed, " that fits into memory"),
                             .got = message,
                             .hint = "use a smaller model, shorter inputs, or a 16-bit type"});
  }
  log(LogLevel::warning, c10::str("a batch of ", failed, " does not fit into memory, trying ", next,
                                  " (", message, ")"));
  return next;
}

}  // namespace detail

void clear_device_cache() { compat::empty_device_cache(); }

}  // namespace accelerant
