#include "format/slice_plan.h"

#include "accelerant/core/error.h"

namespace accelerant::format {
namespace {

DimRange resolve(const TensorInfo& tensor, std::size_t dim, std::span<const DimRange> ranges,
                 const std::string& prefix) {
  const std::int64_t size = tensor.shape[dim];
  DimRange range = dim < ranges.size() ? ranges[dim] : DimRange{};
  if (range.end == DimRange::to_the_end) range.end = size;
  if (range.begin < 0 || range.begin > range.end || range.end > size) {
    throw Error(ErrorDetails{
        .problem =
            prefix + "the range of dimension " + std::to_string(dim) + " is outside the tensor",
        .expected = "0 <= begin <= end <= " + std::to_string(size),
        .got = "from " + std::to_string(range.begin) + " to " + std::to_string(range.end),
        .hint = {}});
  }
  return range;
}

}  // namespace

void SlicePlan::for_each_run(const std::function<void(std::uint64_t begin)>& f) const {
  if (bytes == 0) return;
  std::vector<std::uint64_t> places(loops.size(), 0);
  std::uint64_t begin = first;
  for (;;) {
    f(begin);
    // The next position, counting like an odometer.
    std::size_t dim = loops.size();
    while (dim > 0 && places[dim - 1] + 1 == loops[dim - 1].count) {
      begin -= places[dim - 1] * loops[dim - 1].stride;
      places[--dim] = 0;
    }
    if (dim == 0) return;
    ++places[dim - 1];
    begin += loops[dim - 1].stride;
  }
}

SlicePlan plan_slice(const TensorInfo& tensor, std::span<const DimRange> ranges,
                     const std::string& prefix) {
  if (ranges.size() > tensor.shape.size()) {
    throw Error(ErrorDetails{.problem = prefix + "more ranges than dimensions",
                             .expected = "at most " + std::to_string(tensor.shape.size()),
                             .got = std::to_string(ranges.size()),
                             .hint = {}});
  }
  SlicePlan plan;
  plan.shape.resize(tensor.shape.size());
  // From the innermost dimension outwards, in bits: whole dimensions become part of the run.
  std::uint64_t stride = dtype_bits(tensor.dtype);
  std::uint64_t first = 0;
  std::uint64_t run = stride;
  bool is_whole_bytes = true;
  for (std::size_t dim = tensor.shape.size(); dim-- > 0;) {
    const DimRange range = resolve(tensor, dim, ranges, prefix);
    const auto count = static_cast<std::uint64_t>(range.end - range.begin);
    plan.shape[dim] = range.end - range.begin;
    first += static_cast<std::uint64_t>(range.begin) * stride;
    if (run == stride) {
      run *= count;
    } else if (count != 1) {
      is_whole_bytes = is_whole_bytes && stride % 8 == 0;
      plan.loops.insert(plan.loops.begin(), {count, stride / 8});
    }
    stride *= static_cast<std::uint64_t>(tensor.shape[dim]);
  }
  for (const std::int64_t size : plan.shape) {
    if (size == 0) return plan;
  }
  if (!is_whole_bytes || first % 8 != 0 || run % 8 != 0) {
    throw Error(ErrorDetails{
        .problem = prefix + "the slice does not begin and end at whole bytes",
        .expected = {},
        .got = {},
        .hint = "elements of type " + std::string(dtype_name(tensor.dtype)) + " have " +
                std::to_string(dtype_bits(tensor.dtype)) +
                " bits: use ranges that are multiples of 4, or the whole last dimension"});
  }
  plan.first = first / 8;
  plan.run = run / 8;
  plan.bytes = plan.run;
  for (const SlicePlan::Loop& loop : plan.loops) plan.bytes *= loop.count;
  return plan;
}

}  // namespace accelerant::format
