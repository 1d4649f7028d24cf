// The linear algebra of PowerSGD, on batches of matrices (batch, rows, columns) with at most as
// many columns as rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

namespace accelerant::dist {

// Makes the columns of each matrix orthonormal, in place. A column of zeros is unchanged.
void orthogonalize_(at::Tensor matrices, double epsilon);

// Replaces columns that cannot be projected on, because they are 0 or not finite, by those of
// another batch.
void replace_unusable_columns_(at::Tensor matrices, const at::Tensor& replacement);

// The seeds that successive calls of numpy.random.RandomState(seed).randint(1_000_000_000) give, so
// that random matrices equal those of torch's hooks.
class SeedSequence {
 public:
  // Starts after `draws` numbers of the generator.
  explicit SeedSequence(int64_t seed, int64_t draws = 0)
      : seed_(seed), draws_(draws), engine_(static_cast<uint32_t>(seed)) {
    engine_.discard(static_cast<unsigned long long>(draws));
  }

  uint64_t next();

  int64_t seed() const { return seed_; }
  int64_t draws() const { return draws_; }

 private:
  int64_t seed_ = 0;
  int64_t draws_ = 0;
  std::mt19937 engine_;
};

}  // namespace accelerant::dist
