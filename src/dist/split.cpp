#include "accelerant/dist/process_control.h"

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerant/core/error.h"

namespace accelerant::dist {

Part part_of(int64_t length, int64_t rank, int64_t num_processes, bool apply_padding) {
  if (num_processes < 1 || rank < 0 || rank >= num_processes) {
    throw Error(ErrorDetails{.problem = "Cannot divide values between processes",
                             .expected = "a rank from 0 to num_processes - 1",
                             .got = c10::str("rank ", rank, " of ", num_processes)});
  }
  const int64_t share = length / num_processes;
  const int64_t extra = length % num_processes;
  Part part;
  part.begin = rank * share + std::min(rank, extra);
  part.end = part.begin + share + (rank < extra ? 1 : 0);
  if (apply_padding && extra > 0 && rank >= extra) part.padding = 1;
  return part;
}

at::Tensor split_between(const at::Tensor& values, int64_t rank, int64_t num_processes,
                         bool apply_padding) {
  if (values.dim() == 0) {
    throw Error(ErrorDetails{.problem = "Cannot divide a tensor between processes",
                             .expected = "at least one dimension",
                             .got = "a tensor without dimensions"});
  }
  const Part part = part_of(values.size(0), rank, num_processes, apply_padding);
  at::Tensor result = values.slice(0, part.begin, part.end);
  if (part.padding == 0) return result;
  const at::Tensor last = values.slice(0, values.size(0) - 1);
  return at::cat({result, last}, 0);
}

void detail::refuse_lengths(int64_t first, int64_t other) {
  throw Error(ErrorDetails{.problem = "Cannot divide a map between processes",
                           .expected = "values of the same length",
                           .got = c10::str("lengths ", first, " and ", other)});
}

}  // namespace accelerant::dist
