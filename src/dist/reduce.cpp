#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/dist/collectives.h"
#include "dist/agreement.h"
#include "dist/packing.h"
#include "dist/transport.h"

namespace accelerant::dist {
namespace {

// Maps 0 ... 2^64 - 1, read as signed numbers, to signed numbers in the same order, and back.
at::Tensor with_sign_flipped(const at::Tensor& tensor) {
  return tensor.bitwise_xor(std::numeric_limits<int64_t>::min());
}

[[noreturn]] void refuse_type(const at::Tensor& tensor, const char* expected) {
  throw Error(ErrorDetails{.problem = "reduce cannot combine tensors of this type",
                           .expected = expected,
                           .got = c10::str(tensor.scalar_type())});
}

// A copy of the tensor in a type that both Gloo and NCCL support, for the exchange.
at::Tensor to_travel(const at::Tensor& tensor, Reduction reduction) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  const bool is_mean = reduction == Reduction::mean;
  const auto copy_as = [&](at::ScalarType type) {
    return plain.to(type, /*non_blocking=*/false, /*copy=*/true).contiguous();
  };
  switch (tensor.scalar_type()) {
    case at::kBool:
    case at::kByte:
    case at::kChar:
      if (is_mean) return copy_as(at::kLong);  // the sum must fit
      return copy_as(tensor.scalar_type() == at::kChar ? at::kChar : at::kByte);
    case at::kShort:
    case at::kInt:
      return copy_as(is_mean ? at::kLong : at::kInt);
    case at::kUInt16:
    case at::kUInt32:
    case at::kLong:
      return copy_as(at::kLong);
    case at::kUInt64: {
      if (is_mean) return copy_as(at::kDouble);
      const at::Tensor bits = copy_as(at::kUInt64).view(at::kLong);
      const bool compares = reduction == Reduction::max || reduction == Reduction::min;
      return compares ? with_sign_flipped(bits) : bits;
    }
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return copy_as(tensor.scalar_type());
    case at::kComplexFloat:
    case at::kComplexDouble:
      if (reduction != Reduction::sum && !is_mean) {
        refuse_type(tensor, "real numbers for this reduction");
      }
      return at::view_as_real(copy_as(tensor.scalar_type()));
    default:
      refuse_type(tensor, "integers, bool, float16, bfloat16, float32, float64, or complex");
  }
}

// The reverse, including the division for the mean.
at::Tensor from_travel(const at::Tensor& travelled, const at::Tensor& original,
                       const ReduceOptions& options, int64_t processes) {
  const at::ScalarType type = original.scalar_type();
  const bool is_mean = options.reduction == Reduction::mean;
  at::Tensor result = travelled;
  if (is_mean && at::isIntegralType(type, /*includeBool=*/true)) {
    result = travelled.to(at::kDouble).div(processes).to(at::kFloat);
  } else {
    if (is_mean) result.div_(processes);
    if (at::isComplexType(type)) {
      result = at::view_as_complex(result);
    } else if (type == at::kUInt64) {
      const bool compares =
          options.reduction == Reduction::max || options.reduction == Reduction::min;
      result = (compares ? with_sign_flipped(result) : result).view(at::kUInt64);
    } else {
      result = result.to(type);
    }
  }
  return options.scale == 1.0 ? result : result.mul(options.scale);
}

// Adding bytes that represent bools would overflow.
Reduction of_bools(Reduction reduction) {
  if (reduction == Reduction::sum) return Reduction::max;
  if (reduction == Reduction::product) return Reduction::min;
  return reduction;
}

void all_reduce_in_place(const World& world, Channel channel, const char* name,
                         const at::Tensor& tensor, Reduction reduction) {
  if (world.size() == 1) return;
  require_same_in_debug(world, name);
  if (tensor.numel() == 0) return;
  const at::Tensor target = tensor.detach();
  at::Tensor buffer = target.contiguous();
  all_reduce(world, channel, name, buffer, reduction);
  if (reduction == Reduction::mean) buffer.div_(world.size());
  if (!buffer.is_same(target)) target.copy_(buffer);
}

}  // namespace

std::vector<at::Tensor> detail::reduce(const World& world, const Bundle& data,
                                       const ReduceOptions& options) {
  require_plain("reduce", data.tensors);
  if (world.size() > 1) {
    require_same(world, "reduce", data,
                 "pad them to the same shape with pad_across_processes first",
                 {static_cast<int64_t>(options.reduction)});
  }
  std::vector<at::Tensor> travelling;
  std::vector<at::Tensor> bools(data.tensors.size());
  std::vector<at::Tensor> others(data.tensors.size());
  for (std::size_t i = 0; i < data.tensors.size(); ++i) {
    const at::Tensor& tensor = data.tensors[i];
    travelling.push_back(tensor.defined() ? to_travel(tensor, options.reduction) : tensor);
    const bool is_bool = tensor.defined() && tensor.scalar_type() == at::kBool;
    (is_bool ? bools : others)[i] = travelling.back();
  }
  if (world.size() > 1) {
    for (const Pack& pack : packs_of(bools)) {
      all_reduce_pack(world, "reduce", bools, pack, of_bools(options.reduction));
    }
    for (const Pack& pack : packs_of(others)) {
      all_reduce_pack(world, "reduce", others, pack, options.reduction);
    }
  }
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < travelling.size(); ++i) {
    const at::Tensor& original = data.tensors[i];
    results.push_back(original.defined()
                          ? from_travel(travelling[i], original, options, world.size())
                          : original);
  }
  return results;
}

void all_reduce_(const World& world, const at::Tensor& tensor, Reduction reduction) {
  all_reduce_in_place(world, Channel::data, "all_reduce_", tensor, reduction);
}

void all_reduce_control_(const World& world, const at::Tensor& tensor, Reduction reduction) {
  all_reduce_in_place(world, Channel::control, "all_reduce_control_", tensor, reduction);
}

bool any(const World& world, bool here, const char* name) {
  if (world.size() == 1) return here;
  require_same_in_debug(world, name);
  at::Tensor flag = at::empty({1}, at::kByte);
  *flag.mutable_data_ptr<uint8_t>() = here ? 1 : 0;
  all_reduce(world, Channel::control, name, flag, Reduction::max);
  return *flag.const_data_ptr<uint8_t>() != 0;
}

}  // namespace accelerant::dist
