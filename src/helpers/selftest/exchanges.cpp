#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include "accelerant/accelerator/accelerator.h"
#include "accelerant/core/error.h"
#include "accelerant/dist/collectives.h"
#include "helpers/selftest/checks.h"

namespace accelerant::selftest {
namespace {

void expect_equal(const char* what, const at::Tensor& got, const at::Tensor& expected) {
  if (got.sizes() == expected.sizes() && got.cpu().equal(expected)) return;
  throw Error(ErrorDetails{.problem = what, .expected = c10::str(expected), .got = c10::str(got)});
}

}  // namespace

void check_exchanges(const Accelerator& accelerator) {
  const int64_t rank = accelerator.process_index();
  const int64_t size = accelerator.num_processes();
  const auto on_device = at::TensorOptions().device(accelerator.device()).dtype(at::kLong);
  const at::Tensor own = at::full({1}, rank, on_device);

  accelerator.wait_for_everyone();
  expect_equal("gather", accelerator.gather(own), at::arange(size));
  expect_equal("reduce", accelerator.reduce(own), at::full({1}, size * (size - 1) / 2, at::kLong));
  expect_equal("pad_across_processes",
               accelerator.pad_across_processes(at::full({rank + 1}, 1, on_device)).sum(),
               at::full({}, rank + 1, at::kLong));
  nlohmann::json object = {{"rank", rank}};
  dist::broadcast_object(accelerator.world(), object, size - 1);
  if (object["rank"] != size - 1) {
    throw Error(ErrorDetails{.problem = "broadcast_object",
                             .expected = c10::str("the value of rank ", size - 1),
                             .got = object.dump()});
  }
}

void check_loaders(Accelerator& accelerator) {
  const int64_t length = 37;  // leaves an incomplete round for any number of processes
  auto batches = data::loader(data::tensors(at::arange(length)), {.batch_size = 4});
  auto loader = accelerator.prepare(batches);
  int64_t next = 0;
  for (auto&& [batch] : loader) {
    const at::Tensor all = accelerator.gather_for_metrics(batch);
    expect_equal("The order of samples", all, at::arange(next, next + all.size(0)));
    next += all.size(0);
  }
  if (next == length) return;
  throw Error(ErrorDetails{
      .problem = "The samples of an epoch", .expected = c10::str(length), .got = c10::str(next)});
}

}  // namespace accelerant::selftest
