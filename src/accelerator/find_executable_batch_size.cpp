#include "accelerant/accelerator/utilities.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <new>
#include <string_view>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"

namespace accelerant {
namespace {

// What has no type of its own: the CPU allocator's two texts, MPS, and sizes that cuDNN cannot do.
constexpr std::array<std::string_view, 4> kTexts = {
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
};

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  if (torch_error == nullptr) return false;
  const std::string_view message = torch_error->what_without_backtrace();
  for (const std::string_view text : kTexts) {
    if (message.find(text) != std::string_view::npos) return true;
  }
  return false;
}

namespace detail {

void check(const FindExecutableBatchSizeOptions& options) {
  if (options.minimum >= 1 && options.starting_batch_size >= options.minimum) return;
  throw Error(ErrorDetails{.problem = "find_executable_batch_size: there is no size to try",
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
    throw Error(ErrorDetails{.problem = "find_executable_batch_size: reduce does not reduce",
                             .expected = c10::str("less than ", failed),
                             .got = c10::str(next)});
  }
  if (next < options.minimum) {
    throw Error(ErrorDetails{.problem = "No executable batch size found",
                             .expected = c10::str("a batch of ", failed, " to fit into memory"),
                             .got = message,
                             .hint = "use a smaller model, shorter inputs, or a type of 16 bits"});
  }
  log(LogLevel::warning, c10::str("a batch of ", failed, " does not fit into memory, trying ", next,
                                  " (", message, ")"));
  return next;
}

}  // namespace detail
}  // namespace accelerant
