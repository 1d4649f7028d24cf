// The linear algebra of PowerSGD, on batches of matrices (batch, rows, columns) with no more
// columns than rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

namespace accelerant::dist {

// Makes the columns of each matrix orthonormal, in place. A column of zeros stays as it is.
void orthogonalize_(at::Tensor matrices, double epsilon);

// Replaces columns that nothing can be projected on any more, as they are 0 or not finite, by those
// of another batch.
void replace_unusable_columns_(at::Tensor matrices, const at::Tensor& replacement);

// The seeds that numpy.random.RandomState(seed).randint(1_000_000_000) gives one after the other,
// so that random matrices are those of torch's hooks.
class SeedSequence {
 public:
  // `draws` numbers of the generator have been used.
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
