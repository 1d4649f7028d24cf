#include "dist/orthogonal.h"

#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>

namespace accelerant::dist {
namespace {

at::Tensor column_norms(const at::Tensor& matrices) {
  return at::linalg_vector_norm(matrices, 2, at::IntArrayRef{1}, /*keepdim=*/true);
}

void gram_schmidt_(const at::Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  for (int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    at::Tensor norm = column_norms(column);
    if (epsilon == 0) {
      norm.masked_fill_(norm.eq(0), 1);  // 0 / 0 would make every gradient of the matrix nan
    } else {
      norm.add_(epsilon);
    }
    column.div_(norm);
    if (i + 1 == columns) break;
    at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(column.mul(rest).sum(1, /*keepdim=*/true).mul(column));
  }
}

}  // namespace

void orthogonalize_(at::Tensor matrices, double epsilon) {
  // QR is faster for more than two columns, but does not support 16 bits.
  const bool is_16_bit =
      matrices.scalar_type() == c10::kHalf || matrices.scalar_type() == c10::kBFloat16;
  if (matrices.size(2) <= 2 || is_16_bit) {
    gram_schmidt_(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

void replace_unusable_columns_(at::Tensor matrices, const at::Tensor& replacement) {
  const at::Tensor norms = column_norms(matrices);
  const at::Tensor usable = norms.gt(0).logical_and_(norms.isfinite());
  matrices.copy_(at::where(usable, matrices, replacement));
}

uint64_t SeedSequence::next() {
  constexpr uint32_t kLargest = 999'999'999;
  constexpr uint32_t kMask = (uint32_t{1} << 30) - 1;  // the bits of the largest number
  for (;;) {
    ++draws_;
    const auto value = static_cast<uint32_t>(engine_()) & kMask;
    if (value <= kLargest) return value;
  }
}

}  // namespace accelerant::dist
