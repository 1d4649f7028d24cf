// Parts of sources and loops that do not depend on the type of the batch.
#include "accelerant/data/detail/source.h"

#include <c10/util/StringUtil.h>

#include <exception>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/data/detail/loop.h"
#include "accelerant/data/detail/stream_source.h"
#include "compat/device.h"
#include "tensor/current_message.h"

namespace accelerant::data::detail {
namespace {

// The first few indices of a batch.
std::string list(std::span<const int64_t> indices) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < indices.size() && i < kShown; ++i) {
    text += c10::str(i == 0 ? "" : ", ", indices[i]);
  }
  return indices.size() > kShown ? c10::str(text, ", ... (", indices.size(), " samples)") : text;
}

}  // namespace

void rethrow_with_sample(int64_t index) {
  std::throw_with_nested(Error(c10::str("The data set failed on sample ", index, ": ",
                                        accelerant::detail::current_message())));
}

void rethrow_with_samples(std::span<const int64_t> indices) {
  try {
    throw;
  } catch (const Error&) {
    throw;  // our own Error, which already names the samples
  } catch (...) {
    std::throw_with_nested(Error(c10::str("Making the batch of samples ", list(indices),
                                          " failed: ", accelerant::detail::current_message())));
  }
}

void throw_stream_in_use() {
  throw Error(ErrorDetails{.problem = "Two loops read from one stream at once",
                           .expected = "one loop at a time over a stream data set",
                           .got = "a second loop",
                           .hint = "give each loader its own data set"});
}

void refuse_to_complete_round(bool has_copies) {
  throw Error(ErrorDetails{
      .problem = "The last batches of a stream cannot be completed",
      .expected = has_copies
                      ? "a stream that ends where its size() says"
                      : "samples that can be copied, so that the first ones can be used again",
      .got = has_copies ? "a stream that ends elsewhere" : "samples that can only be moved",
      .hint = "set drop_last, or even_batches = false"});
}

void refuse_long_read(int64_t asked, int64_t got) {
  throw Error(ErrorDetails{.problem = "A stream returned too many samples",
                           .expected = c10::str("at most ", asked, ", the number requested"),
                           .got = std::to_string(got)});
}

at::Tensor own_copy(const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }

int64_t rows_of_first_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : 1;
}

void call_at_end(const std::function<void(LoaderState&, bool)>& on_loop, LoaderState& state) {
  try {
    on_loop(state, false);
  } catch (...) {
    log(LogLevel::error,
        c10::str("Ending a loop over a loader failed: ", accelerant::detail::current_message()));
  }
}

void use_one_intra_op_thread() { compat::use_one_intra_op_thread(); }

void refuse_missing_dataset() {
  throw Error(ErrorDetails{
      .problem = "A loader got no data set", .expected = "a non-null pointer", .got = "nullptr"});
}

}  // namespace accelerant::data::detail
