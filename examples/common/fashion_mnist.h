// Fashion-MNIST: 70 000 grey pictures of clothes, 28 x 28, in ten classes, in the file format of
// the original MNIST. Debian has it as the package dataset-fashion-mnist, packed by gzip, which
// torch::data::datasets::MNIST does not read.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace examples {

// Where the Debian package puts the files.
inline const std::string fashion_mnist_folder = "/usr/share/datasets/fashion-mnist";

struct LabelledImages {
  at::Tensor images;  // uint8 [n, 1, 28, 28], 0 is the background
  at::Tensor labels;  // int64 [n], each 0 to 9
};

struct FashionMnist {
  LabelledImages train;
  LabelledImages test;
};

// Reads the four .gz files in `folder`. Throws a std::runtime_error that names the file if one is
// missing, damaged, truncated or not what its name says.
FashionMnist load_fashion_mnist(const std::string& folder);

// The pictures as float32 with mean 0 and deviation 1 over the training set.
at::Tensor normalised(const at::Tensor& images);

}  // namespace examples
